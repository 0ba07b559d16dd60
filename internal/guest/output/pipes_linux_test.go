package output

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

type nowhere struct{}

func (nowhere) write(wire.Channel, []byte) {}
func (nowhere) flush()                     {}

// TestDrainOfOnePipe verifies that a remaining child process with one of the two pipes does not block Drain.
func TestDrainOfOnePipe(t *testing.T) {
	t.Parallel()
	for held := range 2 {
		var fds [2]int
		var writers [2]*os.File
		for i := range fds {
			var p [2]int
			must(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
			fds[i], writers[i] = p[0], os.NewFile(uintptr(p[1]), "pipe")
		}
		o := NewPipes(fds, nowhere{})
		o.Start()
		must(t, writers[1-held].Close())
		drained := make(chan bool)
		go func() { drained <- o.Drain(10 * time.Millisecond) }()
		select {
		case leaked := <-drained:
			if !leaked {
				t.Errorf("pipe %d is held, and said not to be", held)
			}
		case <-time.After(2 * time.Minute):
			t.Errorf("pipe %d is held, and waited for", held)
		}
		must(t, writers[held].Close())
		<-o.done
	}
}
