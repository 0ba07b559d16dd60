package workflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Limits of a command's recorded output per stream. Truncated JSON is invalid, so a step with JSON output keeps more.
const (
	execHead = 64 << 10
	execTail = 192 << 10
	jsonKeep = 512 << 10 // head and tail each
	// execGrace is how much longer than the timeout the step of a command may take. The sandbox kills the command at the
	// timeout and then returns the output.
	execGrace = 5 * time.Second
	// maxEnvValue is the kernel's maximum size of one environment variable, minus some room for its name.
	maxEnvValue = 128<<10 - 1024
)

// run runs the command in the step's sandbox.
func (b *execBody) run(ctx context.Context, ex *execution) (result, error) {
	started := time.Now()
	req, err := b.request(ctx, ex)
	if err != nil {
		return result{}, err
	}
	s, err := guard(ctx, ex.run, ex.path, ex.open)
	if err != nil {
		return result{}, err
	}
	if ex.timeout > 0 {
		left := ex.timeout - time.Since(started)
		if left <= 0 {
			return result{}, failf(codeTimeout, errStepTimeout, "timed out after %s", ex.timeout)
		}
		req.Timeout = max(left, sandbox.MinExecTimeout)
	}
	ex.used.Evidence = []sandbox.Evidence{s.Settings().Evidence()}
	out, err := guard(ctx, ex.run, ex.path,
		func(ctx context.Context) (sandbox.ExecResult, error) { return s.Exec(ctx, req) })
	if err != nil {
		return result{}, err
	}
	res, err := b.judge(out)
	ex.run.blame(s.ID(), out, err)
	return res, err
}

// blame removes the limit from a step's error if the previous command in the sandbox already reached it. The file
// system is still full, but the step may have failed for another reason, so it may be retried.
func (r *run) blame(id string, out sandbox.ExecResult, err error) {
	before, _ := r.limits.Swap(id, out.Limit)
	full := out.QuotaExceeded || strings.Contains(out.Limit, " is full (")
	var e *Error
	if full && before == out.Limit && out.Status == sandbox.ExecCompleted && errors.As(err, &e) {
		e.Limit = ""
	}
}

// request evaluates the step's expressions and returns the request for the command.
func (b *execBody) request(ctx context.Context, ex *execution) (sandbox.ExecRequest, error) {
	vars := ex.scope.variables()
	req := sandbox.ExecRequest{Command: b.command, HeadBytes: execHead, TailBytes: execTail, Env: map[string]string{}}
	if b.wantJSON {
		req.HeadBytes, req.TailBytes = jsonKeep, jsonKeep
	}
	for _, v := range b.argv {
		arg, err := v.EvalString(ctx, vars)
		if err != nil {
			return req, err
		}
		req.Argv = append(req.Argv, arg)
	}
	for _, a := range slices.Concat(b.env, b.vars) {
		s, err := a.value.EvalString(ctx, vars)
		if err != nil {
			return req, err
		}
		if len(s) > maxEnvValue {
			return req, ex.tooLarge(a.value, "a value of %d bytes is too large for a command line, pass it as stdin", len(s))
		}
		req.Env[a.name] = s
	}
	var err error
	if req.Dir, err = b.cwd.EvalString(ctx, vars); err != nil {
		return req, err
	}
	stdin, err := b.stdin.EvalString(ctx, vars)
	if err != nil {
		return req, err
	}
	if len(stdin) > sandbox.MaxStdinBytes {
		return req, ex.tooLarge(b.stdin, "stdin has %d bytes, at most %d are allowed", len(stdin), sandbox.MaxStdinBytes)
	}
	req.Stdin = []byte(stdin)
	return req, nil
}

// tooLarge returns the error for a value above the limits of a command.
func (ex *execution) tooLarge(v *expr.Value, format string, args ...any) error {
	e := failf(codeTooLarge, nil, format, args...)
	if progs := v.Programs(); len(progs) > 0 { // literal values in the file are small
		e.Where = ex.run.wf.where(progs[0].Place)
	}
	return e
}

// open returns the step's sandbox. If no sandbox with the name is open, open creates one.
func (ex *execution) open(ctx context.Context) (*session.Session, error) {
	r := ex.run
	if r.manager == nil {
		return nil, fmt.Errorf("sandboxes are not available: %w", backend.ErrUnsupported)
	}
	key := r.scope().Key(ex.session)
	if s, err := r.manager.Get(key); err == nil {
		if s.Info().State != session.StateLost {
			r.forgetFiles(ex.session)
			return s, nil
		}
		gone, _, err := r.manager.Gone(ctx, r.scope().Scope())
		if err != nil || slices.Contains(gone, key) {
			return s, err // calls fail; an empty replacement would hide the loss
		}
	}
	if exists, _ := r.files(ex.session); exists { // it could not be opened when the run was resumed
		return r.continueIn(ctx, ex.session, ex.location)
	}
	s, _, err := r.openAsIs(ctx, key, r.sandboxRequest(ex.location))
	return s, err
}

// openAsIs opens a sandbox with the existing configuration, because an agent may have opened it with other settings.
// Other programs may have written the sandbox's record. Therefore the request contains the recorded network only if the
// workflow or one of its agents requests the same network.
func (r *run) openAsIs(ctx context.Context, key session.Key, req session.Request) (*session.Session, bool, error) {
	req.Mode = session.OpenAsIs
	if _, err := r.manager.Get(key); r.past == nil && err != nil { // otherwise a lost sandbox may be recreated
		return r.manager.Open(ctx, key, req)
	}
	list, err := r.manager.List(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, info := range list {
		for _, s := range r.wf.all {
			if info.Key == key {
				wish, _ := r.sharedSandbox(s)
				wish = wish.WithDefaults(r.base)
				network := cmp.Or(wish.Network, backend.NetworkNone)
				if wish.Egress.Equal(info.Egress) && network == cmp.Or(info.Network, backend.NetworkNone) {
					req.Network, req.Egress = wish.Network, wish.Egress
				}
			}
		}
	}
	return r.manager.Open(ctx, key, req)
}

// sandboxRequest returns the request for a sandbox no agent has opened. The request is the workflow's. If it has no
// image, the image and settings come from the first agent with the same sandbox. Without such an agent, the image is
// plain Debian.
func (r *run) sandboxRequest(at location) session.Request {
	req := r.base
	if req.Image == "" {
		for _, s := range r.wf.all {
			if wish, name := r.sharedSandbox(s); name == at.name {
				req = wish.WithDefaults(req)
				break
			}
		}
	}
	if req.Image == "" {
		wish.DefaultImage(&req, frontmatter.RuntimeBash)
	}
	return req
}

// judge converts the command's result to the step's output and decides whether the step failed.
func (b *execBody) judge(out sandbox.ExecResult) (result, error) {
	ok := out.Status == sandbox.ExecCompleted && out.Signal == "" && slices.Contains(b.okCodes, out.ExitCode)
	data := map[string]any{
		"ok": ok, "status": string(out.Status), "signal": out.Signal, "exit_code": nil,
		"stdout": outputText(out.Stdout), "stderr": outputText(out.Stderr),
		"limit":     out.Limit,
		"truncated": out.Stdout.Omitted > 0 || out.Stderr.Omitted > 0, "duration_ms": out.Duration.Milliseconds(),
	}
	if out.Signal == "" && out.Status == sandbox.ExecCompleted {
		data["exit_code"] = int64(out.ExitCode)
	}
	if !utf8.ValidString(outputText(out.Stdout)) || !utf8.ValidString(outputText(out.Stderr)) {
		data["invalid_utf8"] = true // expr.Normalize replaces invalid bytes
	}
	parsed, jsonErr := jsonOf(out.Stdout)
	if jsonErr == nil {
		data["json"] = parsed
	}
	res := result{output: data, has: true, last: true}
	if err := commandError(out, ok || b.allowFailure); err != nil {
		return res, err
	}
	if b.wantJSON && jsonErr != nil {
		return res, failf(codeOutput, nil, "the output is not JSON: %v", jsonErr)
	}
	return res, nil
}

// commandError returns the reason why a command counts as failed, or nil. allow_failure ignores exit codes and crashes
// of the command. It does not ignore a kill from outside.
func commandError(out sandbox.ExecResult, forgiven bool) error {
	suffix := ""
	if out.Limit != "" {
		suffix = ": " + out.Limit
	}
	switch {
	case out.Status == sandbox.ExecTimedOut:
		return failf(codeTimeout, nil, "the command timed out after %s", asked(out.Timeout))
	case out.Status == sandbox.ExecOOMKilled, out.Status == sandbox.ExecQuotaKilled:
		return &Error{Code: Code(out.Status), Message: "the command was killed" + suffix, Limit: out.Limit}
	case out.Status == sandbox.ExecKilled:
		return &Error{Code: codeKilled, Message: "the command was killed"}
	case forgiven:
		return nil
	case out.Signal != "":
		return &Error{Code: codeExit, Message: "the command was killed by " + out.Signal + suffix, Limit: out.Limit}
	}
	text := fmt.Sprintf("the command exited with code %d%s", out.ExitCode, suffix)
	return &Error{Code: codeExit, Message: text, Limit: out.Limit}
}

// asked rounds an effective timeout to the configured timeout. The effective timeout is slightly shorter, because the
// time before the command started was subtracted.
func asked(limit time.Duration) time.Duration { return cmp.Or(limit.Round(10*time.Millisecond), limit) }

func outputText(o sandbox.Output) string {
	if o.Omitted == 0 {
		return string(o.Bytes())
	}
	return fmt.Sprintf("%s\n[… %d bytes omitted …]\n%s", o.Head, o.Omitted, o.Tail)
}

// jsonOf parses a stream with one JSON object or list.
func jsonOf(o sandbox.Output) (any, error) {
	if o.Omitted > 0 {
		return nil, fmt.Errorf("it has %d bytes, of which %d were omitted", o.Total, o.Omitted)
	}
	v, err := expr.DecodeJSON(o.Bytes())
	if err != nil {
		return nil, err
	}
	switch v.(type) {
	case map[string]any, []any:
		return v, nil
	}
	return nil, errors.New("it is neither an object nor a list")
}
