package memory

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// execution is one command. It waits for the end of standard input, gets an answer, and exits.
type execution struct {
	g       *guest
	req     wire.RunRequest
	started time.Time
	input   chan struct{} // closed at the end of standard input
	ready   chan struct{} // closed when the output is available
	ended   chan struct{}
	ends    chan ending // only the first value counts

	endInput, setReady func() // each closes its channel once

	mu      sync.Mutex // guards all fields below
	stdin   []byte
	chunks  []wire.Chunk
	stdout  []byte
	stderr  []byte
	final   ending
	endedAt time.Time
}

// ending describes how a command ended. If state is empty, the command is still running.
type ending struct {
	state  wire.ExecState
	code   int
	signal string
}

// start starts a command. Streamed input arrives later.
func (g *guest) start(req *wire.RunRequest) (*execution, error) {
	switch {
	case !wire.ValidExecID(req.ExecID):
		return nil, wire.Errorf(wire.CodeInvalid, "exec ID %.80q", req.ExecID)
	case len(req.Argv) == 0 || req.Argv[0] == "":
		return nil, wire.Errorf(wire.CodeInvalid, "no command")
	case req.Terminal != nil:
		return nil, wire.Errorf(wire.CodeUnsupported, "terminals are not supported by the memory backend")
	}
	x := &execution{
		g: g, req: *req, started: time.Now(), stdin: slices.Clone(req.Stdin), input: make(chan struct{}),
		ready: make(chan struct{}), ended: make(chan struct{}), ends: make(chan ending, 1),
	}
	x.endInput, x.setReady = sync.OnceFunc(func() { close(x.input) }), sync.OnceFunc(func() { close(x.ready) })
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, other := range g.execs {
		if other.req.ExecID == req.ExecID {
			return nil, wire.Errorf(wire.CodeExists, "exec %s already exists", req.ExecID)
		}
	}
	g.execs = append(g.execs, x)
	if !req.StdinOpen && !req.StdinStream {
		x.endInput()
	}
	go x.live()
	return x, nil
}

// live runs the command from start to end.
func (x *execution) live() {
	var deadline <-chan time.Time
	if x.req.TimeoutMillis > 0 {
		deadline = time.After(time.Duration(x.req.TimeoutMillis) * time.Millisecond)
	}
	answers := make(chan Answer, 1)
	go func() {
		select {
		case <-x.input:
			answers <- x.ask()
		case <-x.ended:
		}
	}()
	var takes <-chan time.Time
	var end ending
	for end.state == "" {
		select {
		case a := <-answers:
			end.code = x.take(a)
			takes = time.After(a.Takes)
		case <-takes:
			end.state = wire.ExecCompleted
		case <-deadline:
			end = ending{state: wire.ExecTimedOut, signal: "SIGTERM"}
		case end = <-x.ends:
		case <-x.g.done:
			end = ending{state: wire.ExecKilled, signal: "SIGKILL"}
		}
	}
	x.mu.Lock()
	x.final, x.endedAt = end, time.Now()
	x.mu.Unlock()
	x.setReady()
	close(x.ended)
}

// ask records the command and returns the answer.
func (x *execution) ask() Answer {
	x.mu.Lock()
	c := Command{
		Sandbox: x.g.session, Argv: slices.Clone(x.req.Argv), Dir: cmp.Or(x.req.Dir, backend.Workdir),
		Env: slices.Clone(x.req.Env), Stdin: x.stdin, files: x.g.files,
	}
	x.mu.Unlock()
	x.g.e.note(Call{Op: OpExec, Sandbox: c.Sandbox, Command: c})
	a := x.g.e.answer(c)
	if a.Lost {
		x.g.e.remove(x.g.id, true)
	}
	return a
}

// take applies an answer and returns the exit code.
func (x *execution) take(a Answer) int {
	code, stderr := a.ExitCode&0xff, a.Stderr
	for _, p := range slices.Sorted(maps.Keys(a.Files)) {
		if _, err := x.g.files.put(&wire.FilePutRequest{Path: p, Overwrite: true}, []byte(a.Files[p])); err != nil {
			code, stderr = 1, stderr+err.Error()+"\n"
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stdout, x.stderr = []byte(a.Stdout), []byte(stderr)
	x.chunk(wire.Stdout, x.stdout)
	x.chunk(wire.Stderr, x.stderr)
	x.setReady()
	return code
}

// chunk records output. The caller must hold the mutex.
func (x *execution) chunk(s wire.StreamName, data []byte) {
	for part := range slices.Chunk(data, wire.MaxData) {
		x.chunks = append(x.chunks, wire.Chunk{Seq: int64(len(x.chunks) + 1), Stream: s, Data: part})
	}
}

func (x *execution) write(p []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stdin = append(x.stdin, p...)
}

// end ends the command, unless it has already ended.
func (x *execution) end(e ending) {
	select {
	case x.ends <- e:
	default:
	}
}

func (x *execution) snapshot() wire.ExecStatus {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := wire.ExecStatus{
		ExecID: x.req.ExecID, Origin: x.req.Origin, State: wire.ExecRunning,
		DurationMicros: time.Since(x.started).Microseconds(),
		StdoutBytes:    int64(len(x.stdout)), StderrBytes: int64(len(x.stderr)),
	}
	if x.final.state != "" {
		st.State, st.ExitCode, st.Signal = x.final.state, x.final.code, x.final.signal
		st.DurationMicros = x.endedAt.Sub(x.started).Microseconds()
		st.EndedMillis = time.Since(x.endedAt).Milliseconds()
	}
	return st
}

func (x *execution) result() *wire.RunResult {
	st := x.snapshot()
	x.mu.Lock()
	defer x.mu.Unlock()
	cut := func(b []byte) wire.Output {
		head := b[:min(len(b), max(0, x.req.HeadBytes))]
		tail := b[len(head):]
		tail = tail[max(0, len(tail)-max(0, x.req.TailBytes)):]
		return wire.Output{Head: head, Tail: tail, Total: int64(len(b)), Omitted: int64(len(b) - len(head) - len(tail))}
	}
	return &wire.RunResult{ExecStatus: st, Stdout: cut(x.stdout), Stderr: cut(x.stderr)}
}

// follow reads standard input from the stream. It closes the returned channel when the host disconnects.
func (x *execution) follow(r *request) <-chan struct{} {
	left := make(chan struct{})
	go func() {
		defer close(left)
		for {
			f, err := wire.ReadFrame(r, nil)
			if err != nil {
				return
			}
			switch {
			case f.Channel != wire.ChanStdin:
			case f.Kind == wire.KindEOF && !x.req.StdinOpen:
				x.endInput()
			case f.Kind == wire.KindData:
				x.write(f.Body)
				credit := wire.Frame{Kind: wire.KindCredit, Channel: wire.ChanStdin}
				credit.Body = binary.BigEndian.AppendUint32(nil, uint32(len(f.Body)))
				if b, err := wire.AppendFrame(nil, credit); err == nil {
					r.send(b)
				}
			}
		}
	}()
	return left
}

func (g *guest) run(r *request, req *wire.RunRequest) error {
	x, err := g.start(req)
	if err != nil {
		return err
	}
	left := x.follow(r)
	if !await(left, x.ended, req.YieldMillis) {
		if req.KillOnCancel && !r.mux.IsClosed() {
			x.end(ending{state: wire.ExecKilled, signal: "SIGTERM"})
		}
		return nil
	}
	res := x.result()
	if err := r.answer(res); err != nil || res.State != wire.ExecRunning || !req.StdinStream {
		return err
	}
	select { // the stream still carries input
	case <-x.input:
	case <-x.ended:
	case <-left:
	}
	return nil
}

func (g *guest) attach(r *request, req *wire.RunRequest) error {
	x, err := g.start(req)
	if err != nil {
		return err
	}
	left := x.follow(r)
	leave := func() error {
		x.end(ending{state: wire.ExecKilled, signal: "SIGTERM"})
		return nil
	}
	select {
	case <-x.ready:
	case <-left:
		return leave()
	}
	for _, c := range x.since(0, 0) {
		ch := wire.ChanStdout
		if c.Stream == wire.Stderr {
			ch = wire.ChanStderr
		}
		r.send(wire.AppendData(nil, ch, c.Data))
	}
	select {
	case <-x.ended:
	case <-left:
		return leave()
	}
	return r.answer(x.result())
}

// since returns at most most chunks after the number seq. If most is 0, it returns all of them.
func (x *execution) since(seq int64, most int) []wire.Chunk {
	x.mu.Lock()
	defer x.mu.Unlock()
	rest := x.chunks[min(seq, int64(len(x.chunks))):]
	if most > 0 {
		rest = rest[:min(most, len(rest))]
	}
	return slices.Clone(rest)
}

func (g *guest) all() []*execution {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.execs)
}

func (g *guest) find(id string) (*execution, error) {
	for _, x := range g.all() {
		if x.req.ExecID == id {
			return x, nil
		}
	}
	return nil, wire.Errorf(wire.CodeNotFound, "exec %.80q not found", id)
}

// gone returns a channel, closed when the host disconnects. The request must have no more frames.
func (r *request) gone() <-chan struct{} {
	left := make(chan struct{})
	go func() {
		_, _ = wire.ReadFrame(r, nil) // returns only at the end of the stream
		close(left)
	}()
	return left
}

// await waits for c for at most millis milliseconds, or without a limit if millis is negative. It returns false if the
// host disconnects first.
func await(left, c <-chan struct{}, millis int64) bool {
	var limit <-chan time.Time
	if millis >= 0 {
		limit = time.After(time.Duration(millis) * time.Millisecond)
	}
	select {
	case <-c:
	case <-limit:
	case <-left:
		return false
	}
	return true
}

func (g *guest) readOutput(r *request, req *wire.ReadRequest) error {
	x, err := g.find(req.ExecID)
	if err != nil {
		return err
	}
	if req.SinceSeq < 0 {
		return wire.Errorf(wire.CodeInvalid, "invalid chunk number %d: must not be negative", req.SinceSeq)
	}
	news := x.ready
	if len(x.since(req.SinceSeq, 1)) == 0 {
		news = x.ended
	}
	select {
	case <-x.ready:
	default:
		news = x.ready
	}
	if !await(r.gone(), news, max(0, req.WaitMillis)) {
		return nil
	}
	most := wire.MaxReadBytes / wire.MaxData
	if req.MaxChunks > 0 {
		most = min(most, req.MaxChunks)
	}
	res := wire.ReadResult{Status: x.snapshot(), NextSeq: req.SinceSeq, Chunks: x.since(req.SinceSeq, most)}
	if n := len(res.Chunks); n > 0 {
		res.NextSeq = res.Chunks[n-1].Seq
	}
	res.Done = res.Status.State != wire.ExecRunning && len(x.since(res.NextSeq, 1)) == 0
	return r.answer(&res)
}

func (g *guest) wait(r *request, req *wire.WaitRequest) error {
	x, err := g.find(req.ExecID)
	if err != nil || !await(r.gone(), x.ended, req.WaitMillis) {
		return err
	}
	return r.answer(x.result())
}

func (g *guest) stdin(r *request, req *wire.StdinRequest) error {
	x, err := g.find(req.ExecID)
	switch {
	case err != nil:
		return err
	case !x.req.StdinOpen:
		return wire.Errorf(wire.CodeInvalid, "the command was started without standard input")
	case x.snapshot().State != wire.ExecRunning:
		return wire.Errorf(wire.CodeInvalid, "the command has exited")
	}
	x.write(req.Data)
	if req.EOF {
		x.endInput()
	}
	return r.answer(wire.Empty{})
}

func (g *guest) kill(r *request, req *wire.KillRequest) error {
	x, err := g.find(req.ExecID)
	if err != nil {
		return err
	}
	how := ending{state: wire.ExecKilled, signal: "SIGTERM"}
	if s := strings.TrimPrefix(req.Signal, "SIG"); s != "" {
		how.signal = "SIG" + s
	}
	x.end(how)
	if !await(r.gone(), x.ended, -1) {
		return nil
	}
	return r.answer(x.snapshot())
}

func (g *guest) killAll() wire.ExecList {
	var ran []*execution
	for _, x := range g.all() {
		if x.snapshot().State == wire.ExecRunning {
			x.end(ending{state: wire.ExecKilled, signal: "SIGTERM"})
			<-x.ended
			ran = append(ran, x)
		}
	}
	return list(ran)
}

func list(execs []*execution) wire.ExecList {
	var l wire.ExecList
	for _, x := range execs {
		l.Execs = append(l.Execs, x.snapshot())
	}
	return l
}
