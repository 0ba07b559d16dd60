package docker_test

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/backend/docker"
)

// steps is a reader returning data in small steps, with a pause before each step.
type steps struct {
	data  []byte
	step  int
	pause time.Duration
	reads int
}

func (s *steps) Read(p []byte) (int, error) {
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	time.Sleep(s.pause)
	s.reads++
	n := copy(p, s.data[:min(s.step, len(s.data))])
	s.data = s.data[n:]
	return n, nil
}

func TestGatherer(t *testing.T) {
	t.Parallel()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, tt := range []struct {
		name  string
		step  int
		pause time.Duration
		waits bool
	}{
		{"a trickle", 300, 600 * time.Microsecond, false},
		{"bulk in small steps", 4096, 20 * time.Microsecond, true},
		{"bulk in large steps", 64 << 10, 500 * time.Microsecond, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := &steps{data: data, step: tt.step, pause: tt.pause}
				begun := time.Now()
				var out bytes.Buffer
				buf := make([]byte, 64<<10)
				must(t, second(io.CopyBuffer(struct{ io.Writer }{&out}, docker.NewGatherer(src), buf)))
				if !bytes.Equal(out.Bytes(), data) {
					t.Errorf("%d bytes of %d", out.Len(), len(data))
				}
				// The time is the bubble's fake time. Time in excess of the source's pauses was spent waiting.
				if waited := time.Since(begun) - time.Duration(src.reads)*tt.pause; (waited > 0) != tt.waits {
					t.Errorf("waited %v in %d reads", waited, src.reads)
				}
			})
		})
	}
}
