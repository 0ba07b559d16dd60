package tools

import (
	"context"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/interpreter"
)

// Notices of interpreters.
const (
	lostNotice = "[workcell: the variables of earlier programs are lost: the interpreter has ended]\n"
	keptNotice = "[workcell: the program was interrupted; the interpreter keeps its variables]\n"
)

// interpret runs a program in an interpreter of the sandbox.
func (b *binding) interpret(ctx context.Context, in execInput) (out execOutput, err error) {
	if err := checkProgram(in); err != nil {
		return out, err
	}
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	req := interpreter.Request{
		Language: in.Interpreter, Code: in.Code, Name: b.hosts.interpreter(), Exec: b.execRequest(ctx, in),
	}
	host, err := b.hosts.grant(ctx, s, &req.Exec)
	if err != nil {
		return out, err
	}
	ended := func() {}
	if host != nil {
		req.Exec.Started = func(c *sandbox.Command) { ended = host.access.Program(in.Interpreter, c.ID()) }
	}
	res, err := interpreter.Run(ctx, s.Sandbox, req)
	if err == nil && !res.Done() && !req.Exec.Background {
		if res.ExecResult, err = outlast(ctx, s, res.ExecResult); err == nil && res.Done() {
			res, err = interpreter.Finish(ctx, s.Sandbox, req, res)
		}
	}
	if res.Done() {
		ended()
	}
	if b.cfg.Session == frontmatter.SessionUser && res.Interpreter != "" {
		b.useInterpreter(res.Interpreter, res.Started)
	}
	if host != nil && res.Started { // otherwise, the running interpreter already has access
		host.interpreter = s.Command(res.Interpreter)
		b.recordHostCalls(ctx, host, sandbox.ExecResult{ExecStatus: sandbox.ExecStatus{
			ExecID: res.Interpreter, Status: sandbox.ExecRunning,
		}})
	}
	if err != nil {
		return out, err
	}
	b.track(s, res.ExecResult)
	if res.Done() {
		return b.programOutput(ctx, s, res), nil
	}
	req.Code, req.Exec = "", sandbox.ExecRequest{}
	b.mu.Lock()
	b.programs[res.ExecID] = program{ended, req, interpreter.Result{Interpreter: res.Interpreter, Lost: res.Lost}}
	b.mu.Unlock()
	return newExecOutput(res.ExecResult, b.evidence(ctx, s)), nil
}

// program is a program returned while still running.
type program struct {
	ended func()              // ends its access to host tools
	req   interpreter.Request // without Code and Exec
	begun interpreter.Result  // the first result, without output
}

// programOutput returns the output of a program that has ended.
func (b *binding) programOutput(ctx context.Context, s *session.Session, res interpreter.Result) execOutput {
	out := newExecOutput(res.ExecResult, b.evidence(ctx, s))
	switch {
	case res.Lost, b.interrupted.ending():
		out.Stderr = withNotice(out.Stderr, lostNotice)
	case res.Kept && (res.Status == sandbox.ExecTimedOut || res.Status == sandbox.ExecKilled):
		out.Stderr = withNotice(out.Stderr, keptNotice)
	}
	b.showValue(ctx, &out, res.Value)
	return out
}

// checkProgram returns an error unless the input contains exactly a program and its interpreter.
func checkProgram(in execInput) error {
	const how = "Pass interpreter (python or node) and code, and optionally sandbox_id, timeout_seconds, and yield_ms."
	switch {
	case in.Interpreter == "":
		return toolspec.Failf(toolspec.CodeInvalid, "code requires interpreter").WithRemediation(how)
	case in.Code == "":
		return toolspec.Failf(toolspec.CodeInvalid, "interpreter requires code").WithRemediation(how)
	case len(in.Cmd) > 0 || in.Command != "" || in.Cwd != "" || len(in.Env) > 0 || in.Stdin != nil || in.Stream:
		return toolspec.Failf(toolspec.CodeInvalid,
			"interpreter cannot be used with cmd, command, cwd, env, stdin, or stream").WithRemediation(how)
	}
	return nil
}

// ended returns the output of a command that has ended. For an interpreter program returned while still running, it
// adds the value. After an error, the caller can call it again.
func (b *binding) ended(ctx context.Context, s *session.Session, res sandbox.ExecResult) (execOutput, error) {
	b.mu.Lock()
	p, ok := b.programs[res.ExecID]
	b.mu.Unlock()
	if !ok {
		return newExecOutput(res, b.evidence(ctx, s)), nil
	}
	p.ended()
	p.begun.ExecResult = res
	last, err := interpreter.Finish(ctx, s.Sandbox, p.req, p.begun)
	if err != nil {
		return execOutput{}, err
	}
	b.mu.Lock()
	delete(b.programs, res.ExecID)
	b.mu.Unlock()
	return b.programOutput(ctx, s, last), nil
}

// showValue adds a value and the supported images to a result.
func (b *binding) showValue(ctx context.Context, out *execOutput, v interpreter.Value) {
	head, tail := excerpt(b.streamChars)
	if out.Value = v.Text; len(v.Text) > head+tail {
		out.Value = show(sandbox.Output{Head: []byte(v.Text[:head]), Tail: []byte(v.Text[len(v.Text)-tail:]),
			Omitted: int64(len(v.Text) - head - tail), Total: int64(len(v.Text))}, "the value", false).text
	}
	for _, data := range v.Images {
		media, width, height := imageType(data)
		if media == "" || len(data) > maxImage || width > maxSide || height > maxSide || !b.box.seesImages(ctx) {
			out.Stderr = withNotice(out.Stderr, "[workcell: image omitted: it cannot be shown to you, or it is too large]\n")
			continue
		}
		out.Pictures = append(out.Pictures, toolspec.Image{MediaType: media, Data: data})
	}
}
