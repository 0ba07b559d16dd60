package proc

import (
	"encoding/binary"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// InputPipe is the guest agent's end of a command's standard input.
type InputPipe struct {
	f        *os.File // non-blocking
	terminal bool
	lock     chan struct{} // held by the writer
}

// newInputPipe returns an InputPipe, the owner of a non-blocking descriptor.
func newInputPipe(fd int, terminal bool) *InputPipe {
	return &InputPipe{f: os.NewFile(uintptr(fd), "input"), terminal: terminal, lock: make(chan struct{}, 1)}
}

// Write writes p to the command. It waits until the command has accepted p or stop is closed, and reports whether the
// command accepted p. If the command has closed the input, all data is discarded.
func (in *InputPipe) Write(p []byte, stop <-chan struct{}) bool {
	select {
	case in.lock <- struct{}{}:
	case <-stop:
		return false
	}
	defer func() { <-in.lock }()
	if p = in.TryWrite(p); len(p) == 0 {
		return true
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = in.f.Write(p) // EPIPE: the command closed the input; a deadline: stop was closed
	}()
	select {
	case <-done:
		return true
	case <-stop:
		_ = in.f.SetWriteDeadline(time.Unix(1, 0)) // works on every pipe; a closed pipe needs none
		<-done
		_ = in.f.SetWriteDeadline(time.Time{})
		return false
	}
}

// TryWrite writes as much of p as possible without blocking, and returns the rest. A small input fits completely. If
// the input is closed, TryWrite discards p and returns nil.
func (in *InputPipe) TryWrite(p []byte) []byte {
	raw, err := in.f.SyscallConn()
	if err != nil {
		return nil
	}
	n := 0
	err = raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), p) // the following write returns the same error
		return true
	})
	if err != nil {
		return nil
	}
	return p[max(n, 0):] // n is -1 after an error
}

// endOfFile is the character to end line-based input from a terminal.
const endOfFile = 4

// End ends the command's input. At a terminal, it writes the end-of-file character, like Write. The character ends the
// input only at the beginning of a line. After a partial line, the command receives this line instead.
func (in *InputPipe) End(stop <-chan struct{}) {
	if in.terminal {
		in.Write([]byte{endOfFile}, stop)
	} else {
		in.Close()
	}
}

// Close closes the command's input. Calling Close again has no effect.
func (in *InputPipe) Close() {
	_ = in.f.Close() // unblocks a write; no data is buffered, and a second call fails
}

// creditBatch is the amount of accepted input before the host gets new credit.
const creditBatch = wire.StdinCredit / 4

// StreamInput copies standard input from a request's stream to the command.
type StreamInput struct {
	Idle chan struct{} // closed when all input of the stream was accepted

	send func(frame []byte) // sends a frame to the host
	in   *InputPipe
	keep bool // keep the input open at the end of the stream

	mu    sync.Mutex // guards the fields below
	more  *sync.Cond
	queue []byte
	eof   bool
	cut   bool // the input is incomplete: the stream ended early, or the host violated the protocol
}

// NewStreamInput starts copying. The caller passes frames to Frame and must call End.
func NewStreamInput(send func([]byte), in *InputPipe, keep bool) *StreamInput {
	s := &StreamInput{send: send, in: in, keep: keep, Idle: make(chan struct{})}
	s.more = sync.NewCond(&s.mu)
	go s.run()
	return s
}

// Frame handles a frame of the host. It never blocks. If a host violates the protocol, for example sends more than the
// credit allows, the input is cut off, as if the stream had ended.
func (s *StreamInput) Frame(f wire.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.eof:
	case f.Kind == wire.KindEOF && f.Channel == wire.ChanStdin:
		s.eof = true
	case f.Kind == wire.KindData && f.Channel == wire.ChanStdin && len(s.queue)+len(f.Body) <= wire.StdinCredit:
		s.queue = append(s.queue, f.Body...)
	default:
		s.eof, s.cut = true, true
	}
	s.more.Signal()
}

// End ends the input from the stream. If the stream ended early, the command's input is not closed, because the command
// would treat the partial input as complete. The caller then kills the command or lets it wait for input.
func (s *StreamInput) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = s.cut || !s.eof
	s.eof = true
	s.more.Signal()
}

// run writes the queued data. It ends with the stream or with the command, whose pipe then discards all data.
func (s *StreamInput) run() {
	defer close(s.Idle)
	var spare []byte // two buffers take turns: one is written while the other is filled
	taken := 0
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && !s.eof {
			s.more.Wait()
		}
		data, eof, cut := s.queue, s.eof, s.cut
		s.queue = spare[:0]
		s.mu.Unlock()
		s.in.Write(data, nil)
		spare = data
		if eof {
			if !cut && !s.keep {
				s.in.Close()
			}
			return
		}
		if taken += len(data); taken >= creditBatch {
			s.credit(taken)
			taken = 0
		}
	}
}

// credit allows the host to send n more bytes.
func (s *StreamInput) credit(n int) {
	b, err := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindCredit, Channel: wire.ChanStdin,
		Body: binary.BigEndian.AppendUint32(nil, uint32(n))})
	if err == nil { // always; the frame is small
		s.send(b)
	}
}
