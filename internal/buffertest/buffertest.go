// Package buffertest has a buffer for what programs and loggers write while a test reads it.
package buffertest

import (
	"bytes"
	"sync"
)

// Buffer is a bytes.Buffer for concurrent use. The zero value is empty.
type Buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

// Write appends p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
