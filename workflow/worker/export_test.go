package worker

import "context"

// AppendLog is appendLog.
const AppendLog = appendLog

// WatchLog is watchLog.
func (q *Queue) WatchLog(ctx context.Context, runID string, changed func()) error {
	return q.watchLog(ctx, runID, changed)
}
