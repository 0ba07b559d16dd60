package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/files"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// handler handles one request.
type handler func(*Server, *request) error

// operations contains the handlers of all requests.
var operations = map[wire.Op]handler{
	wire.OpHealth:   (*Server).handleHealth,
	wire.OpRun:      decoded((*Server).handleRun),
	wire.OpAttach:   decoded((*Server).handleAttach),
	wire.OpRead:     decoded((*Server).handleRead),
	wire.OpWait:     decoded((*Server).handleWait),
	wire.OpStdin:    decoded((*Server).handleStdin),
	wire.OpKill:     decoded((*Server).handleKill),
	wire.OpKillAll:  func(s *Server, r *request) error { return r.Answer(listOf(s.killAll(proc.DefaultGrace))) },
	wire.OpExecs:    func(s *Server, r *request) error { return r.Answer(listOf(s.execs.all())) },
	wire.OpFileGet:  onFiles((*files.Service).Get),
	wire.OpFilePut:  onFiles((*files.Service).Put),
	wire.OpList:     onFiles((*files.Service).List),
	wire.OpStat:     onFiles((*files.Service).Stat),
	wire.OpRemove:   onFiles((*files.Service).Remove),
	wire.OpMkdir:    onFiles((*files.Service).Mkdir),
	wire.OpRename:   onFiles((*files.Service).Rename),
	wire.OpDigest:   onFiles((*files.Service).Digest),
	wire.OpTerminal: decoded((*Server).handleTerminal),
	wire.OpJoin:     decoded((*Server).handleJoin),
	wire.OpResize:   decoded((*Server).handleResize),
	wire.OpListen:   decoded((*Server).handleListen),
	wire.OpAccept:   decoded((*Server).handleAccept),
	wire.OpDeadline: decoded((*Server).handleDeadline),
	wire.OpDial:     decoded((*Server).handleDial),
	wire.OpClaim:    decoded((*Server).handleClaim),
}

// decoded returns a handler. It decodes the request's message.
func decoded[T any](serve func(*Server, *request, *T) error) handler {
	return func(s *Server, r *request) error {
		msg := new(T)
		if err := wire.Decode(r.env.Arg, r.body, msg); err != nil {
			return wire.Errorf(wire.CodeInvalid, "%v", err)
		}
		r.env.Arg, r.body = nil, nil // frees memory, because a command may run for a long time
		return serve(s, r, msg)
	}
}

// onFiles returns a handler for a file request.
func onFiles[T any](serve func(*files.Service, files.Request, *T) error) handler {
	return decoded(func(s *Server, r *request, msg *T) error { return serve(s.files, r, msg) })
}

// serveSession serves a host's streams until the session ends, and returns the reason. Some requests may not have ended
// when it returns.
func (s *Server) serveSession(mux *yamux.Session, conn *sessionConn) error {
	for {
		st, err := mux.AcceptStream()
		if err != nil {
			return err
		}
		if mux.NumStreams() > maxStreams {
			s.requests.Go(func() {
				(&request{Stream: st}).fail(wire.Errorf(wire.CodeCapacity, "more than %d concurrent requests", maxStreams))
				_ = st.Close() // the host reads until the response
			})
			continue
		}
		s.requests.Go(func() { s.serveStream(&request{Stream: st, mux: mux, conn: conn}) })
	}
}

// request is a request and the stream with it.
type request struct {
	*yamux.Stream // one Write keeps the frames together
	mux           *yamux.Session
	conn          *sessionConn
	env           wire.Envelope
	body          []byte
	more          []byte // data of the stream read by present
	cancelled     bool   // the host canceled the request; set before watch closes the channel
}

func (s *Server) serveStream(r *request) {
	defer r.Close()
	defer s.guard("a request")
	err := r.read()
	if errors.Is(err, io.EOF) || r.mux.IsClosed() {
		return
	}
	serve := operations[r.env.Op]
	switch {
	case err != nil:
		err = wire.Errorf(wire.CodeInvalid, "%v", err)
	case serve == nil:
		err = wire.Errorf(wire.CodeUnsupported, "unknown request %.40q", r.env.Op)
	default:
		err = serve(s, r)
	}
	if err != nil {
		r.fail(err)
	}
}

func (r *request) read() error {
	f, err := wire.ReadFrame(r, nil)
	if err != nil {
		return err
	}
	if f.Kind != wire.KindRequest {
		return fmt.Errorf("frame kind %d instead of a request", f.Kind)
	}
	r.body = f.Body
	return wire.Decode(f.Head, nil, &r.env)
}

// Answer sends the response.
func (r *request) Answer(msg any) error {
	b, err := wire.AppendAnswer(make([]byte, 0, 512), msg)
	if err != nil {
		return wire.Errorf(wire.CodeInternal, "%v", err)
	}
	r.write(b)
	return nil
}

func (r *request) fail(err error) {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		e = wire.Errorf(wire.CodeInternal, "%v", err)
	}
	b, err := wire.AppendError(nil, e)
	if err != nil {
		return // the text quotes a request and exceeds wire.MaxHead
	}
	r.write(b)
}

// write sends frames. It ignores errors, because only a disconnected host causes them, which watch detects.
func (r *request) write(b []byte) { _, _ = r.Write(b) }

// watch reads the host's frames after the request and passes them to in, which may be nil. It sets cancelled and closes
// the channel when the host disconnects. It ends with the request.
func (r *request) watch(in *proc.StreamInput) <-chan struct{} {
	left := make(chan struct{})
	go func() {
		defer close(left)
		frames := io.MultiReader(bytes.NewReader(r.more), r)
		for {
			f, err := wire.ReadFrame(frames, nil)
			if err != nil {
				break
			}
			if in != nil {
				in.Frame(f)
			}
		}
		r.cancelled = r.gaveUp()
		if in != nil {
			in.End()
		}
	}()
	return left
}

// present reports whether the host still waits for the response. It does not block. It must be called before watch.
func (r *request) present() bool {
	_ = r.SetReadDeadline(time.Unix(1, 0)) // cannot fail, like the call below
	const most = 2 * wire.StdinCredit      // more than the input, because the frames have headers
	b, err := io.ReadAll(io.LimitReader(r, most))
	_ = r.SetReadDeadline(time.Time{})
	r.more = append(r.more, b...)
	return errors.Is(err, yamux.ErrTimeout) || len(b) == most
}

// gaveUp reports whether a disconnected host canceled the request. Otherwise the connection broke. A goodbye cancels
// all requests, because it may arrive before the end of a stream.
func (r *request) gaveUp() bool { return !r.mux.IsClosed() || r.conn.bye.Load() }

// Release ends the goroutine of watch.
func (r *request) Release() { _ = r.SetReadDeadline(time.Unix(1, 0)) }
