package worker

import "context"

// AppendLog exports appendLog.
const AppendLog = appendLog

// WatchLog exports watchLog.
func (q *Queue) WatchLog(ctx context.Context, runID string, changed func()) error {
	return q.watchLog(ctx, runID, changed)
}
