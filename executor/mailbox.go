package executor

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/workcell-dev/workcell/backend"
)

// maxMail is the maximum number of unread bytes for a CLI.
const maxMail = 16 << 20

// mailbox is a pipe with a buffer, so the writer never waits for the reader. The writer also reads the CLI's output.
// This prevents a deadlock with a CLI that reads input only after the output is read.
type mailbox struct {
	mu     sync.Mutex // guards the fields below
	more   *sync.Cond // signals changes of these fields
	b      bytes.Buffer
	closed bool
}

func newMailbox() *mailbox {
	m := &mailbox{}
	m.more = sync.NewCond(&m.mu)
	return m
}

// Write implements io.Writer. Data written after close is dropped.
func (m *mailbox) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return len(p), nil
	}
	if m.b.Len()+len(p) > maxMail {
		return 0, fmt.Errorf("it does not read the responses to its requests: %w", backend.ErrInvalid)
	}
	m.more.Signal()
	return m.b.Write(p)
}

// Read implements io.Reader.
func (m *mailbox) Read(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.b.Len() == 0 {
		if m.closed {
			return 0, io.EOF
		}
		m.more.Wait()
	}
	return m.b.Read(p)
}

// close ends the input after the written data.
func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.more.Signal()
}
