package httpguard_test

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/httpguard"
)

// slowLink is a connection that can transfer 256 KiB before each deadline.
type slowLink struct {
	*httptest.ResponseRecorder
	left int
}

func (l *slowLink) SetWriteDeadline(time.Time) error {
	l.left = 256 << 10
	return nil
}

func (l *slowLink) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errors.New("deadline exceeded")
	}
	return l.ResponseRecorder.Write(p)
}

// TestSlowClient verifies that a slow client receives a large write.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	link := &slowLink{ResponseRecorder: httptest.NewRecorder()}
	w := &httpguard.PacedWriter{ResponseWriter: link, Timeout: time.Second}
	want := bytes.Repeat([]byte("0123456"), 200_000)
	if n, err := w.Write(want); err != nil || n != len(want) || !bytes.Equal(link.Body.Bytes(), want) {
		t.Errorf("%d of %d bytes, %v", n, len(want), err)
	}
}
