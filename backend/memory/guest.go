package memory

import (
	"crypto/rand"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// guest implements the guest agent of a running sandbox. Its goroutines end soon after stop, or when hosts disconnect.
type guest struct {
	e       *engine
	id      string // ID of the sandbox
	session string
	files   *files
	boot    string
	started time.Time
	done    chan struct{} // closed by stop

	mu    sync.Mutex        // guards all fields below
	conns map[net.Conn]bool // nil after stop
	execs []*execution      // oldest first
}

func newGuest(e *engine, s *sandbox) *guest {
	return &guest{
		e: e, id: s.info.ID, session: s.info.SessionID, files: s.files, boot: rand.Text(), started: time.Now(),
		done: make(chan struct{}), conns: map[net.Conn]bool{},
	}
}

// stop ends all commands and connections. It does not wait, because a script may stop its own sandbox.
func (g *guest) stop() {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns == nil {
		return
	}
	for c := range g.conns { // closed before the commands end, to keep their results from all callers
		_ = c.Close() // closing a pipe cannot fail
	}
	g.conns = nil
	close(g.done)
}

// serve serves one host on a separate stream.
func (g *guest) serve(conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns == nil {
		_ = conn.Close() // closing a pipe cannot fail
		return
	}
	g.conns[conn] = true
	go func() {
		g.host(conn) // the host disconnected
		_ = conn.Close()
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.conns, conn)
	}()
}

func (g *guest) host(conn net.Conn) {
	version, err := wire.ReadMarker(conn, wire.FromHost)
	if err != nil {
		return
	}
	b, err := wire.AppendAnswer(wire.AppendMarker(nil, wire.FromGuest, wire.ProtocolVersion), g.hello())
	if err != nil {
		return
	}
	if _, err := conn.Write(b); err != nil || version != wire.ProtocolVersion {
		return
	}
	cfg := yamux.DefaultConfig()
	cfg.LogOutput, cfg.EnableKeepAlive, cfg.StreamOpenTimeout = io.Discard, false, 0
	mux, err := yamux.Server(conn, cfg)
	if err != nil {
		return
	}
	defer mux.Close()
	for {
		st, err := mux.AcceptStream()
		if err != nil {
			return
		}
		go g.request(&request{Stream: st, mux: mux})
	}
}

func (g *guest) hello() wire.Hello {
	return wire.Hello{
		Version: name, PID: 1, UID: 1000, Workdir: backend.Workdir, Home: wire.Home(backend.Workdir), BootID: g.boot,
		Programs: []string{"sh", "bash", "python3", "node"},
	}
}

// request is one request with the stream.
type request struct {
	*yamux.Stream
	mux *yamux.Session
	env wire.Envelope
	raw []byte // body of the frame
}

// operations returns the functions for the guest agent's requests.
func operations() map[wire.Op]func(*guest, *request) error {
	return map[wire.Op]func(*guest, *request) error{
		wire.OpHealth:  func(g *guest, r *request) error { return r.answer(g.health()) },
		wire.OpRun:     decoded((*guest).run),
		wire.OpAttach:  decoded((*guest).attach),
		wire.OpRead:    decoded((*guest).readOutput),
		wire.OpWait:    decoded((*guest).wait),
		wire.OpStdin:   decoded((*guest).stdin),
		wire.OpKill:    decoded((*guest).kill),
		wire.OpKillAll: func(g *guest, r *request) error { return r.answer(g.killAll()) },
		wire.OpExecs:   func(g *guest, r *request) error { return r.answer(list(g.all())) },
		wire.OpFileGet: decoded((*guest).get),
		wire.OpFilePut: decoded((*guest).put),
		wire.OpList:    onFiles((*files).list),
		wire.OpStat:    onFiles((*files).stat),
		wire.OpRemove:  onFiles((*files).remove),
		wire.OpMkdir:   onFiles((*files).mkdir),
		wire.OpRename:  onFiles((*files).rename),
		wire.OpDigest:  onFiles((*files).digest),
		wire.OpClaim:   decoded(func(_ *guest, r *request, _ *wire.ClaimRequest) error { return r.answer(wire.Empty{}) }),
	}
}

func decoded[T any](serve func(*guest, *request, *T) error) func(*guest, *request) error {
	return func(g *guest, r *request) error {
		msg := new(T)
		if err := wire.Decode(r.env.Arg, r.raw, msg); err != nil {
			return wire.Errorf(wire.CodeInvalid, "%v", err)
		}
		return serve(g, r, msg)
	}
}

func onFiles[T any](serve func(*files, *T) (any, error)) func(*guest, *request) error {
	return decoded(func(g *guest, r *request, msg *T) error {
		g.files.mu.Lock()
		res, err := serve(g.files, msg)
		g.files.mu.Unlock()
		if err != nil {
			return err
		}
		return r.answer(res)
	})
}

func (g *guest) request(r *request) {
	defer func() {
		_ = r.SetReadDeadline(time.Unix(1, 0)) // cannot fail; unblocks readers waiting for the host
		_ = r.Close()
	}()
	f, err := wire.ReadFrame(r, nil)
	if err != nil {
		return
	}
	if err = wire.Decode(f.Head, nil, &r.env); err == nil {
		r.raw = f.Body
		err = g.dispatch(r)
	}
	if err == nil {
		return
	}
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		e = wire.Errorf(wire.CodeInternal, "%v", err)
	}
	if b, err := wire.AppendError(nil, e); err == nil {
		r.send(b)
	}
}

func (g *guest) dispatch(r *request) error {
	if serve, ok := operations()[r.env.Op]; ok {
		return serve(g, r)
	}
	return wire.Errorf(wire.CodeUnsupported, "%.40q is not supported by the memory backend", r.env.Op)
}

// send sends frames. It ignores errors, because the next read reports the end of the connection.
func (r *request) send(b []byte) { _, _ = r.Write(b) }

func (r *request) answer(msg any) error {
	b, err := wire.AppendAnswer(nil, msg)
	if err == nil {
		r.send(b)
	}
	return err
}

func (g *guest) health() wire.Health {
	h := wire.Health{UptimeMillis: time.Since(g.started).Milliseconds()}
	for _, x := range g.all() {
		if x.snapshot().State == wire.ExecRunning {
			h.Running++
		}
	}
	return h
}

func (g *guest) get(r *request, req *wire.FileGetRequest) error {
	p, err := relative(req.Path)
	if err != nil {
		return err
	}
	g.e.note(Call{Op: OpRead, Sandbox: g.session, Path: p})
	n, err := g.files.file(p)
	if err != nil {
		return err
	}
	if req.Offset < 0 {
		return wire.Errorf(wire.CodeInvalid, "the offset is negative")
	}
	data := n.data[min(req.Offset, int64(len(n.data))):]
	if req.Length >= 0 {
		data = data[:min(req.Length, int64(len(data)))]
	}
	if err := r.answer(n.info(p)); err != nil {
		return err
	}
	for part := range slices.Chunk(data, wire.MaxData) {
		r.send(wire.AppendData(nil, wire.ChanFile, part))
	}
	r.send(wire.AppendEOF(nil, wire.ChanFile))
	return nil
}

func (g *guest) put(r *request, req *wire.FilePutRequest) error {
	var data []byte
	for {
		f, err := wire.ReadFrame(r, nil)
		switch {
		case err != nil:
			return wire.Errorf(wire.CodeInvalid, "the contents ended early")
		case f.Kind == wire.KindEOF:
			info, err := g.files.put(req, data)
			if err != nil {
				return err
			}
			g.e.note(Call{Op: OpPut, Sandbox: g.session, Path: info.Path})
			return r.answer(info)
		}
		data = append(data, f.Body...)
	}
}
