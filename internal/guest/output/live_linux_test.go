package output

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestLiveControl verifies that control frames are not sent inside an output frame, of which the host has read a part
// before it stopped reading for a while.
func TestLiveControl(t *testing.T) {
	t.Parallel()
	host, st := streamPair(t)
	sink := NewLiveSink(streamHost{st})
	sink.hurry() // the command is about to end
	piece := bytes.Repeat([]byte("output "), 5000)
	var output []byte
	for range window / len(piece) * 2 { // more than fits in the buffers of a host that does not read
		if !sink.behind {
			output = append(output, piece...)
			sink.write(wire.ChanStdout, piece)
		}
	}
	if !sink.behind || len(sink.pending)%(len(piece)+wire.FramePrefixSize) == 0 {
		t.Fatalf("%d bytes are left of frames of %d", len(sink.pending), len(piece))
	}
	credit, err := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindCredit, Channel: wire.ChanStdin, Body: make([]byte, 4)})
	must(t, err)
	told := make(chan struct{})
	go func() {
		defer close(told)
		_ = st.SetWriteDeadline(time.Time{})
		sink.Control(credit) // if possible, sent in between when the host reads again
		if err := sink.Finish(&wire.RunResult{}); err != nil {
			t.Error(err)
		}
	}()
	var got []byte
	var credits int
	for answered := false; !answered; {
		f, err := wire.ReadFrame(host, nil)
		must(t, err)
		switch f.Kind {
		case wire.KindData:
			got = append(got, f.Body...)
		case wire.KindCredit:
			credits++
		default:
			answered = true
		}
	}
	<-told
	if !bytes.Equal(got, output) || credits != 1 {
		t.Errorf("%d of %d bytes came, or others, and %d credits", len(got), len(output), credits)
	}
}

// window is the buffer size of a host that does not read.
const window = 256 << 10

// streamHost is a host at the other end of a stream.
type streamHost struct{ *yamux.Stream }

func (h streamHost) Release() {}

// streamPair returns both ends of a stream.
func streamPair(t *testing.T) (host, guest *yamux.Stream) {
	t.Helper()
	a, b := net.Pipe()
	cfg := yamux.DefaultConfig()
	cfg.LogOutput, cfg.MaxStreamWindowSize = io.Discard, window
	client, err := yamux.Client(a, cfg)
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	server, err := yamux.Server(b, cfg)
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	host, err = client.OpenStream()
	must(t, err)
	if guest, err = server.AcceptStream(); err != nil {
		t.Fatal(err)
	}
	return host, guest
}
