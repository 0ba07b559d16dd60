package server

import (
	"bytes"
	"net"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestLiveControl: what a host is told beside the output does not get between the parts of a frame of output, of which
// it has taken one when it takes no more for a while.
func TestLiveControl(t *testing.T) {
	t.Parallel()
	host, r := streamPair(t)
	sink := newLiveSink(r)
	sink.pace = func() bool { // the command is about to end
		_ = r.st.SetWriteDeadline(time.Now().Add(time.Millisecond))
		return true
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	in := newStreamInput(sink.control, newInputPipe(null), false)
	defer in.end()
	piece := bytes.Repeat([]byte("output "), 5000)
	var output []byte
	for range sendWindow / len(piece) * 2 { // more than a host that takes nothing has room for
		if !sink.behind {
			output = append(output, piece...)
			sink.write(wire.ChanStdout, piece)
		}
	}
	if !sink.behind || len(sink.pending)%(len(piece)+wire.FramePrefixSize) == 0 {
		t.Fatalf("%d bytes are left of frames of %d", len(sink.pending), len(piece))
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		_ = r.st.SetWriteDeadline(time.Time{})
		in.credit(creditBatch) // goes out in between, if it can, when the host takes something again
		if err := sink.finish(&wire.RunResult{}); err != nil {
			t.Error(err)
		}
	}()
	var got []byte
	var credits int
	for answered := false; !answered; {
		f, err := wire.ReadFrame(host, nil)
		if err != nil {
			t.Fatal(err)
		}
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

// streamPair is a request, and its host's end of the stream.
func streamPair(t *testing.T) (*yamux.Stream, *request) {
	t.Helper()
	a, b := net.Pipe()
	client, err := yamux.Client(a, muxConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	server, err := yamux.Server(b, muxConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	host, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	st, err := server.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	return host, &request{mux: server, st: st}
}
