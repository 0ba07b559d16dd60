package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func TestFrameRules(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]wire.Frame{
		"no kind":             {},
		"unknown kind":        {Kind: 7},
		"unknown channel":     {Kind: wire.KindData, Channel: 6},
		"data without":        {Kind: wire.KindData},
		"data with a head":    {Kind: wire.KindData, Channel: wire.ChanFile, Head: []byte("{}")},
		"data too large":      {Kind: wire.KindData, Channel: wire.ChanFile, Body: make([]byte, wire.MaxData+1)},
		"eof with a body":     {Kind: wire.KindEOF, Channel: wire.ChanFile, Body: []byte("x")},
		"error with a body":   {Kind: wire.KindError, Body: []byte("x")},
		"credit of 3 bytes":   {Kind: wire.KindCredit, Channel: wire.ChanStdin, Body: []byte("xyz")},
		"credit for a file":   {Kind: wire.KindCredit, Channel: wire.ChanFile, Body: []byte("wxyz")},
		"connection's answer": {Kind: wire.KindAnswer, Channel: wire.ChanConn},
		"answer on a channel": {Kind: wire.KindAnswer, Channel: wire.ChanFile},
		"head too large":      {Kind: wire.KindRequest, Head: make([]byte, wire.MaxHead+1)},
		"body too large":      {Kind: wire.KindRequest, Body: make([]byte, wire.MaxBody+1)},
	} {
		if _, err := wire.AppendFrame(nil, f); !errors.Is(err, wire.ErrFrame) {
			t.Errorf("%s: written: %v", name, err)
		}
		raw := []byte{byte(f.Kind), byte(f.Channel), 0, 0}
		raw = binary.BigEndian.AppendUint32(raw, uint32(len(f.Head)))
		raw = binary.BigEndian.AppendUint32(raw, uint32(len(f.Body)))
		raw = append(append(raw, f.Head...), f.Body...)
		if _, err := wire.ReadFrame(bytes.NewReader(raw), nil); !errors.Is(err, wire.ErrFrame) {
			t.Errorf("%s: read: %v", name, err)
		}
	}
}

// TestFrameThatNeverComes verifies that a large declared length alone allocates little memory. It does not run in
// parallel, because allocations of other tests would count.
func TestFrameThatNeverComes(t *testing.T) {
	prefix := []byte{byte(wire.KindRequest), 0, 0, 0, 0, 0x40, 0, 0, 0, 0x40, 0, 0}
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := wire.ReadFrame(bytes.NewReader(prefix), nil); !errors.Is(err, io.ErrUnexpectedEOF) {
				b.Fatalf("got %v", err)
			}
		}
	}).AllocedBytesPerOp()
	if allocated > 512<<10 {
		t.Errorf("%d bytes were allocated for a frame of 12", allocated)
	}
}

func roundTrip(t *testing.T, in, out any) {
	t.Helper()
	b, err := wire.AppendAnswer(nil, in)
	checktest.Must(t, err)
	f, err := wire.ReadFrame(bytes.NewReader(b), nil)
	checktest.Must(t, err)
	checktest.Must(t, wire.Decode(f.Head, f.Body, out))
	if diff := cmp.Diff(in, out); diff != "" {
		t.Errorf("%T (-want +got):\n%s", in, diff)
	}
}

func TestMessagesRoundTrip(t *testing.T) {
	t.Parallel()
	bad := "\xff\xfe/bad\x80"
	roundTrip(t, &wire.RunRequest{ExecID: "x", Stdin: []byte{0, 0xff}, Spawn: wire.Spawn{Argv: []string{"a", "", bad}, Env: []string{"A=" + bad}, Dir: bad}}, new(wire.RunRequest))
	roundTrip(t, &wire.RunRequest{ExecID: "x", Spawn: wire.Spawn{Argv: []string{"<>&\u2028"}}}, new(wire.RunRequest))
	roundTrip(t, &wire.RunRequest{ExecID: "x", Terminal: &wire.TerminalSize{Rows: 65535}}, new(wire.RunRequest))
	roundTrip(t, &wire.TerminalRequest{ExecID: "x", Size: wire.TerminalSize{Rows: 24, Cols: 80}}, new(wire.TerminalRequest))
	roundTrip(t, &wire.StdinRequest{ExecID: "x", Data: []byte(bad), EOF: true}, new(wire.StdinRequest))
	roundTrip(t, &wire.RunResult{Stdout: wire.Output{Head: []byte(bad), Tail: []byte("t"), Total: 9}, Stderr: wire.Output{Tail: []byte{0}}}, new(wire.RunResult))
	roundTrip(t, &wire.ReadResult{Chunks: []wire.Chunk{{Seq: 1, Stream: wire.Stdout, Data: []byte(bad)}, {Seq: 2, Stream: wire.Stderr}}, NextSeq: 2}, new(wire.ReadResult))
	roundTrip(t, &wire.FileInfo{Path: bad, Type: wire.TypeFile}, new(wire.FileInfo))
	roundTrip(t, &wire.ListResult{Entries: []wire.FileInfo{{Path: bad}, {Path: "good"}}}, new(wire.ListResult))
	roundTrip(t, &wire.FileGetRequest{Path: bad, Length: 1}, new(wire.FileGetRequest))
	roundTrip(t, &wire.FilePutRequest{Path: bad}, new(wire.FilePutRequest))
	roundTrip(t, &wire.PathRequest{Path: bad}, new(wire.PathRequest))
	roundTrip(t, &wire.ListRequest{Path: bad}, new(wire.ListRequest))
	roundTrip(t, &wire.RenameRequest{From: bad, To: "good"}, new(wire.RenameRequest))
	roundTrip(t, &wire.DigestRequest{Paths: []string{bad, "good"}}, new(wire.DigestRequest))
}

func TestDecodeBulk(t *testing.T) {
	t.Parallel()
	for name, body := range map[string][]byte{
		"nothing":  nil,
		"short":    {0, 0, 0},
		"too long": {0, 0, 0, 9, 'x'},
		"rest":     {0, 0, 0, 1, 'x', 'y'},
		"enormous": {0xff, 0xff, 0xff, 0xff},
	} {
		if err := wire.Decode([]byte("{}"), body, new(wire.StdinRequest)); !errors.Is(err, wire.ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidExecID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{"a": true, "A-z_09": true, strings.Repeat("x", 64): true, "": false, strings.Repeat("x", 65): false,
		"a/b": false, "..": false, "a b": false, "é": false, "a\x00": false} {
		if wire.ValidExecID(id) != want {
			t.Errorf("%q: want %v", id, want)
		}
	}
}

// FuzzMessage verifies that any readable frame is written back unchanged, and the contents are decoded or rejected.
func FuzzMessage(f *testing.F) {
	for _, fr := range []wire.Frame{
		{Kind: wire.KindRequest, Head: []byte(`{"op":"run-v1","arg":{"exec_id":"x"}}`),
			Body: []byte{0, 0, 0, 1, 0, 0, 0, 1, 'a', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 'x'}},
		{Kind: wire.KindAnswer, Head: []byte(`{"chunks":[{"seq":1,"stream":"stdout"}]}`), Body: []byte{0, 0, 0, 1, 'x'}},
		{Kind: wire.KindError, Head: []byte(`{"code":"not_found"}`)},
		{Kind: wire.KindRequest, Head: []byte(`{"op":"terminal-v1","arg":{"exec_id":"x","terminal":{"rows":24,"cols":80}}}`),
			Body: make([]byte, 16)},
		{Kind: wire.KindRequest, Head: []byte(`{"op":"terminal-join-v1","arg":{"exec_id":"x","size":{"rows":65535,"cols":1}}}`)},
		{Kind: wire.KindData, Channel: wire.ChanStdout, Body: []byte("data")},
		{Kind: wire.KindEOF, Channel: wire.ChanFile},
		{Kind: wire.KindCredit, Channel: wire.ChanStdin, Body: []byte{0, 0, 1, 0}},
	} {
		b, err := wire.AppendFrame(nil, fr)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		fr, err := wire.ReadFrame(r, nil)
		if err != nil {
			if !errors.Is(err, wire.ErrFrame) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("unexpected error %v", err)
			}
			return
		}
		out, err := wire.AppendFrame(nil, fr)
		if err != nil || !bytes.Equal(out, in[:len(in)-r.Len()]) {
			t.Fatalf("written again as %x, %v", out, err)
		}
		head := fr.Head
		var env wire.Envelope
		if wire.Decode(head, nil, &env) == nil && len(env.Arg) > 0 {
			head = env.Arg
		}
		for _, msg := range []any{new(wire.RunRequest), new(wire.RunResult), new(wire.ReadResult), new(wire.StdinRequest), new(wire.PathRequest),
			new(wire.RenameRequest), new(wire.TerminalRequest), new(wire.ListResult), new(wire.Hello), new(wire.Error)} {
			if wire.Decode(head, fr.Body, msg) != nil {
				continue
			}
			if _, err := wire.AppendAnswer(nil, msg); err != nil && !errors.Is(err, wire.ErrFrame) {
				t.Fatalf("%T was read and cannot be written: %v", msg, err)
			}
		}
	})
}
