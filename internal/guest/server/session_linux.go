package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/files"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

const arch = runtime.GOARCH

// handler serves one request.
type handler func(*Server, *request) error

func handlers() map[wire.Op]handler {
	return map[wire.Op]handler{
		wire.OpHealth:  (*Server).handleHealth,
		wire.OpRun:     (*Server).handleRun,
		wire.OpAttach:  (*Server).handleAttach,
		wire.OpRead:    (*Server).handleRead,
		wire.OpWait:    (*Server).handleWait,
		wire.OpStdin:   (*Server).handleStdin,
		wire.OpKill:    (*Server).handleKill,
		wire.OpKillAll: (*Server).handleKillAll,
		wire.OpExecs:   (*Server).handleExecs,
		wire.OpFileGet: fileHandler((*files.Service).Get),
		wire.OpFilePut: fileHandler((*files.Service).Put),
		wire.OpList:    fileHandler((*files.Service).List),
		wire.OpStat:    fileHandler((*files.Service).Stat),
		wire.OpRemove:  fileHandler((*files.Service).Remove),
		wire.OpMkdir:   fileHandler((*files.Service).Mkdir),
		wire.OpRename:  fileHandler((*files.Service).Rename),

		wire.OpTerminal: (*Server).handleTerminal,
		wire.OpJoin:     (*Server).handleJoin,
		wire.OpResize:   (*Server).handleResize,
	}
}

// fileHandler makes a handler of a request about files.
func fileHandler(serve func(*files.Service, files.Request) error) handler {
	return func(s *Server, r *request) error { return serve(s.files, r) }
}

// ops lists what the guest can do, in a fixed order.
func ops() []wire.Op {
	return []wire.Op{wire.OpHealth, wire.OpRun, wire.OpAttach, wire.OpRead, wire.OpWait, wire.OpStdin, wire.OpKill,
		wire.OpKillAll, wire.OpExecs, wire.OpFileGet, wire.OpFilePut, wire.OpList, wire.OpStat, wire.OpRemove, wire.OpMkdir, wire.OpRename,
		wire.OpTerminal, wire.OpJoin, wire.OpResize}
}

// serveSession serves a host's streams until its session ends. Requests may still be ending then.
func (s *Server) serveSession(mux *yamux.Session, conn *sessionConn) {
	byOp := handlers()
	for {
		st, err := mux.AcceptStream()
		if err != nil {
			return
		}
		if mux.NumStreams() > maxStreams {
			s.requests.Go(func() { refuse(st) })
			continue
		}
		s.requests.Go(func() { s.serveStream(&request{mux: mux, conn: conn, st: st, done: make(chan struct{})}, byOp) })
	}
}

// request is one request and its stream.
type request struct {
	mux  *yamux.Session
	conn *sessionConn
	st   *yamux.Stream
	op   wire.Op
	arg  json.RawMessage
	body []byte
	more []byte // of the stream, which present has read

	hangup hangup // how the host left; set before watch closes its channel

	mu   sync.Mutex // guards writes to st
	done chan struct{}
}

// refuse answers a request that is one too many.
func refuse(st *yamux.Stream) {
	r := &request{st: st}
	r.fail(wire.Errorf(wire.CodeCapacity, "more than %d requests at once", maxStreams))
	_ = st.Close() // the host reads on until the answer
}

func (s *Server) serveStream(r *request, byOp map[wire.Op]handler) {
	defer r.st.Close()
	defer s.guard("a request")
	defer close(r.done)
	err := r.read()
	if errors.Is(err, io.EOF) || r.mux.IsClosed() {
		return
	}
	if err == nil {
		if h := byOp[r.op]; h != nil {
			err = h(s, r)
		} else {
			err = wire.Errorf(wire.CodeUnsupported, "this guest does not know the request %.40q", r.op)
		}
	} else {
		err = wire.Errorf(wire.CodeInvalid, "%v", err)
	}
	if err != nil {
		r.fail(err)
	}
}

func (r *request) read() error {
	f, err := wire.ReadFrame(r.st, nil)
	if err != nil {
		return err
	}
	if f.Kind != wire.KindRequest {
		return fmt.Errorf("frame kind %d instead of a request", f.Kind)
	}
	var env wire.Envelope
	if err := wire.Decode(f.Head, nil, &env); err != nil {
		return err
	}
	r.op, r.arg, r.body = env.Op, env.Arg, f.Body
	return nil
}

// Decode reads the request's message.
func (r *request) Decode(msg any) error {
	if err := wire.Decode(r.arg, r.body, msg); err != nil {
		return wire.Errorf(wire.CodeInvalid, "%v", err)
	}
	r.arg, r.body = nil, nil
	return nil
}

// Answer sends the answer.
func (r *request) Answer(msg any) error {
	b, err := wire.AppendAnswer(make([]byte, 0, 512), msg)
	if err != nil {
		return wire.Errorf(wire.CodeInternal, "%v", err)
	}
	r.write(b)
	return nil
}

func (r *request) fail(err error) {
	b, err := wire.AppendError(nil, asWireError(err))
	if err != nil {
		return // cannot happen: an Error is three strings
	}
	r.write(b)
}

// write sends frames. A failure means that the host is not interested any more, which watch notices as well.
func (r *request) write(b []byte) { _, _ = r.Send(b) }

// Send returns how much of the frames is on its way.
func (r *request) Send(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.st.Write(b)
}

// hangup is how a host left a request.
type hangup int

const (
	hostCancelled hangup = iota // closed the stream
	hostGone                    // its whole session ended
)

// watch reads the host's frames behind the request and passes them to frame, nil for none. Its channel is closed when the
// host leaves, which hangup then explains. It ends with the request.
func (r *request) watch(frame func(wire.Frame)) <-chan struct{} {
	left := make(chan struct{})
	go func() {
		in := io.MultiReader(bytes.NewReader(r.more), r.st)
		var buf []byte
		for {
			f, err := wire.ReadFrame(in, buf)
			if err != nil {
				r.hangup = r.whyLeft()
				close(left)
				return
			}
			if frame != nil {
				frame(f)
			}
		}
	}()
	return left
}

// present reports whether the host still waits for the answer, without waiting itself. It must be called before watch.
func (r *request) present() bool {
	_ = r.st.SetReadDeadline(time.Unix(1, 0)) // cannot fail, as below
	b, err := io.ReadAll(io.LimitReader(r.st, wire.StdinCredit))
	_ = r.st.SetReadDeadline(time.Time{})
	r.more = append(r.more, b...)
	return errors.Is(err, yamux.ErrTimeout) || len(b) == wire.StdinCredit
}

// whyLeft distinguishes a host that gave the request up from one that was cut off. A farewell gives up everything: it may
// overtake the end of a stream.
func (r *request) whyLeft() hangup {
	if r.mux.IsClosed() && !r.conn.bye.Load() {
		return hostGone
	}
	return hostCancelled
}

// Read reads the frames behind the request.
func (r *request) Read(p []byte) (int, error) { return r.st.Read(p) }

// SetWriteDeadline bounds what is being sent and what will be.
func (r *request) SetWriteDeadline(t time.Time) error { return r.st.SetWriteDeadline(t) }

// Release ends the goroutine of watch.
func (r *request) Release() { _ = r.st.SetReadDeadline(time.Unix(1, 0)) }

func asWireError(err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	return wire.Errorf(wire.CodeInternal, "%v", err)
}
