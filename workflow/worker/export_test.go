package worker

import "context"

// AppendLog exports appendLog.
const AppendLog = appendLog

// WriteLog exports writeLog.
var WriteLog = writeLog

// WatchLog exports watchLog.
func (q *Queue) WatchLog(ctx context.Context, runID string, changed func()) error {
	return q.watchLog(ctx, runID, changed)
}
