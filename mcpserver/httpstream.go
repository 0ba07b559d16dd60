package mcpserver

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// commentEvery is the interval of comments in event streams, because many load balancers close a connection after a
// minute without bytes.
const commentEvery = 15 * time.Second

// commented adds comments to an answer that is an event stream, after the first event. The SDK writes each event at
// once, so a comment never splits an event. The caller must call end.
type commented struct {
	http.ResponseWriter
	every time.Duration

	mu    sync.Mutex  // serializes writers, and guards the fields below
	next  *time.Timer // nil before the first event
	ended bool
}

// Write writes part of the answer, and starts the comments of an event stream.
func (w *commented) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil && w.Header().Get("Content-Type") == "text/event-stream" {
		w.next = time.AfterFunc(w.every, w.comment)
	}
	return w.ResponseWriter.Write(p)
}

// FlushError sends the written data.
func (w *commented) FlushError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap returns the underlying writer for http.ResponseController.
func (w *commented) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *commented) comment() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	// After an error, the connection is broken, and the SDK ends the stream.
	_, _ = io.WriteString(w.ResponseWriter, ":\n\n")
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	w.next.Reset(w.every)
}

// end ends the comments.
func (w *commented) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended = true; w.next != nil {
		w.next.Stop()
	}
}
