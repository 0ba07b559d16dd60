package proc

import (
	"encoding/binary"
	"os"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// InputPipe is the guest's end of a command's standard input.
type InputPipe struct {
	f        *os.File // does not block
	terminal bool
	lock     chan struct{} // held by the writer
	shut     sync.Once
}

// newInputPipe takes over a descriptor that does not block.
func newInputPipe(fd int, terminal bool) *InputPipe {
	return &InputPipe{f: os.NewFile(uintptr(fd), "input"), terminal: terminal, lock: make(chan struct{}, 1)}
}

// Write passes p to the command, waiting until it takes it or stop is closed, and reports whether it took it. A command
// that closed its input swallows all.
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
		_, _ = in.f.Write(p) // EPIPE: the command does not want it; a deadline: the host does not
	}()
	select {
	case <-done:
		return true
	case <-stop:
		_ = in.f.SetWriteDeadline(time.Unix(1, 0)) // works on every pipe, and a closed one needs none
		<-done
		_ = in.f.SetWriteDeadline(time.Time{})
		return false
	}
}

// TryWrite writes what the pipe takes at once, which is all of a small input, and returns the rest.
func (in *InputPipe) TryWrite(p []byte) []byte {
	raw, err := in.f.SyscallConn()
	if err != nil {
		return nil
	}
	n := 0
	err = raw.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), p) // the write after this one meets the same error
		return true
	})
	if err != nil {
		return nil
	}
	return p[max(n, 0):]
}

// endOfFile is the character that ends the input of what reads from a terminal line by line.
const endOfFile = 4

// End ends the command's input; at a terminal it types what stands for that, as Write does.
func (in *InputPipe) End(stop <-chan struct{}) {
	if in.terminal {
		in.Write([]byte{endOfFile}, stop)
	} else {
		in.Close()
	}
}

// Close closes the command's input. Idempotent.
func (in *InputPipe) Close() {
	in.shut.Do(func() { _ = in.f.Close() }) // unblocks a write; nothing is buffered
}

// creditBatch is how much input the command must have taken before the host gets new credit for it.
const creditBatch = wire.StdinCredit / 4

// StreamInput takes standard input from a request's stream to the command.
type StreamInput struct {
	send func(frame []byte) // to the host
	in   *InputPipe
	keep bool          // leave the input open at the stream's end
	Idle chan struct{} // closed when all of the stream's input was taken

	mu    sync.Mutex // guards the fields below
	more  *sync.Cond
	queue []byte
	eof   bool
	cut   bool // the stream ended and the host did not say that the input had
}

// NewStreamInput starts the transport; the caller feeds it with frame and must call end.
func NewStreamInput(send func([]byte), in *InputPipe, keep bool) *StreamInput {
	s := &StreamInput{send: send, in: in, keep: keep, Idle: make(chan struct{})}
	s.more = sync.NewCond(&s.mu)
	go s.run()
	return s
}

// Frame takes a frame of the host. It never blocks: a host that sends more than it has credit for gets its input cut.
func (s *StreamInput) Frame(f wire.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.eof:
	case f.Kind == wire.KindData && f.Channel == wire.ChanStdin && len(s.queue)+len(f.Body) <= wire.StdinCredit:
		s.queue = append(s.queue, f.Body...)
	default:
		s.eof = true
	}
	s.more.Signal()
}

// End ends what comes from the stream. An input that broke off is not closed: the command would take what
// came for all of it. It is ended, or its lease is.
func (s *StreamInput) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = s.cut || !s.eof
	s.eof = true
	s.more.Signal()
}

// run writes what is queued. It ends at the stream's end, or with the command, whose pipe then swallows all.
func (s *StreamInput) run() {
	defer close(s.Idle)
	var spare []byte
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
		if eof && cut {
			return
		}
		if eof {
			break
		}
		if taken += len(data); taken >= creditBatch {
			s.credit(taken)
			taken = 0
		}
	}
	if !s.keep {
		s.in.Close()
	}
}

func (s *StreamInput) credit(n int) {
	b, err := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindCredit, Channel: wire.ChanStdin,
		Body: binary.BigEndian.AppendUint32(nil, uint32(n))})
	if err == nil {
		s.send(b)
	}
}
