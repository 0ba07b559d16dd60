package proc

import (
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestStreamInput verifies that the command's input is closed only at its complete end.
func TestStreamInput(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		last   wire.Frame
		closed bool
	}{
		"end":           {wire.Frame{Kind: wire.KindEOF, Channel: wire.ChanStdin}, true},
		"other channel": {wire.Frame{Kind: wire.KindEOF, Channel: wire.ChanStdin + 1}, false},
		"above credit":  {wire.Frame{Kind: wire.KindData, Channel: wire.ChanStdin, Body: make([]byte, wire.StdinCredit+1)}, false},
	} {
		var fds [2]int
		checktest.Must(t, unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
		in, command := newInputPipe(fds[1], false), os.NewFile(uintptr(fds[0]), "command")
		s := NewStreamInput(nil, in, false)
		s.Frame(wire.Frame{Kind: wire.KindData, Channel: wire.ChanStdin, Body: []byte("part")})
		s.Frame(tc.last)
		<-s.Idle
		if closed := in.f.Close() != nil; closed != tc.closed {
			t.Errorf("%s: the input is closed: %v", name, closed)
		}
		if got, err := io.ReadAll(command); string(got) != "part" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		checktest.Must(t, command.Close())
	}
}
