package worker

// AppendLog is appendLog.
const AppendLog = appendLog
