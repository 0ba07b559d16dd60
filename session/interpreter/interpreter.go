// Package interpreter runs programs in a process of a sandbox that keeps their variables from one to the next, as a
// notebook does.
//
// The process is a command of the sandbox: it outlives the program of the host, and ends with the sandbox, when nobody
// used it for half an hour, or when a program that was to end did not.
package interpreter

import (
	"context"
	_ "embed" // the drivers
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/sandbox"
)

// Languages of interpreters.
const (
	Python = "python"
	Node   = "node"
)

//go:embed driver.py
var driverPython string

//go:embed driver.js
var driverNode string

const (
	// dir holds what interpreters and their clients find each other by. It is below /tmp, as nothing of it is the
	// workspace's.
	dir = "/tmp/.workcell-interpreter"
	// idle is how long an interpreter lives without a call, as the drivers have it.
	idle       = 30 * time.Minute
	startTime  = 30 * time.Second
	probeTime  = 15 * time.Second // more than the drivers' GRACE
	endTime    = time.Second      // for the guest to notice that the interpreter ended
	maxResult  = 96 << 20         // of a result: eight images in base64
	maxExecID  = 256
	unanswered = 69 // exit code of workcell-guest interpret when no interpreter answers, or it ended
)

// Request is a program.
type Request struct {
	Language string // Python or Node
	Code     string
	// Name tells interpreters of one language apart, by letters, digits, - and _. Empty is one.
	Name string
	// Exec bounds the program: Timeout, Yield and Background, HeadBytes, TailBytes. Env, EnvBefore and Services are those
	// of the interpreter, when this program is the first. The other fields must be zero.
	Exec sandbox.ExecRequest
}

// Result is what became of a program. It printed Stdout and Stderr; its exit code is 1 after an exception, which is in
// Stderr.
type Result struct {
	sandbox.ExecResult
	Value
	// Started: this program is the first of the interpreter.
	Started bool
	// Lost: there are no variables of earlier programs any more: this one started another interpreter, or ended the one
	// there was.
	Lost bool
}

// Value is what the last expression of a program was.
type Value struct {
	Text   string // as the language writes it; empty when it was none
	Images [][]byte
}

// Run runs a program after those that the interpreter has. A program that reaches its timeout is interrupted, and the
// interpreter keeps its variables if the program then ends within three seconds. An image without the language is
// backend.ErrUnsupported.
func Run(ctx context.Context, s *sandbox.Sandbox, req Request) (Result, error) {
	i, err := open(s, req)
	if err != nil {
		return Result{}, err
	}
	started, before, err := i.ensure(ctx, req.Exec)
	if err != nil {
		return Result{}, err
	}
	res := Result{Started: started, Lost: started && before}
	if res.ExecResult, err = i.call(ctx, req.Code, req.Exec); err != nil || !res.Done() {
		return res, err
	}
	if res.Status != sandbox.ExecCompleted || res.ExitCode == unanswered {
		if ended, over := i.ended(ctx); over {
			res.Lost = true
			if res.Status == sandbox.ExecCompleted {
				res.Status, res.ExitCode, res.Signal = ended.Status, ended.ExitCode, ended.Signal
			}
		} else if res.Lost = !i.answers(ctx); res.Lost {
			i.end(ctx)
		}
	}
	res.Value, err = Take(ctx, s, res.ExecID)
	return res, err
}

// Take returns the value of a program that has ended, once.
func Take(ctx context.Context, s *sandbox.Sandbox, execID string) (Value, error) {
	file := path.Join(dir, "result-"+path.Base(execID))
	data, _, err := s.ReadFileBytes(ctx, file, sandbox.ReadFileOptions{Limit: maxResult})
	if errors.Is(err, backend.ErrNotFound) {
		return Value{}, nil
	}
	if err != nil {
		return Value{}, err
	}
	if _, err := s.RemoveFile(ctx, file, false); err != nil {
		return Value{}, err
	}
	var result struct {
		Value  string   `json:"value"`
		Images [][]byte `json:"images"`
	}
	if json.Unmarshal(data, &result) != nil {
		return Value{}, nil // a program of the sandbox wrote over it
	}
	return Value{result.Value, result.Images}, nil
}

// Running returns the ids of the commands that a sandbox's interpreters are, or were, as far as the sandbox lets it
// find out.
func Running(ctx context.Context, s *sandbox.Sandbox) (ids []string, err error) {
	list, err := s.ListFiles(ctx, dir, sandbox.ListFilesOptions{Recursive: true})
	if isTheirs(err) {
		return nil, nil
	}
	for _, f := range list.Entries {
		if f.Type != sandbox.TypeFile || path.Ext(f.Path) != ".exec" {
			continue
		}
		id, _, err := s.ReadFileBytes(ctx, f.Path, sandbox.ReadFileOptions{Limit: maxExecID})
		if isTheirs(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		ids = append(ids, string(id))
	}
	return ids, err
}

// isTheirs reports whether a file cannot be read because of what a program of the sandbox made of it.
func isTheirs(err error) bool {
	return slices.ContainsFunc([]error{backend.ErrNotFound, backend.ErrPermission, backend.ErrInvalid, backend.ErrTooLarge, backend.ErrUnsupported},
		func(kind error) bool { return errors.Is(err, kind) })
}

// interpreter is one of a sandbox.
type interpreter struct {
	s    *sandbox.Sandbox
	lang string
	dir  string
	argv []string
}

func open(s *sandbox.Sandbox, req Request) (*interpreter, error) {
	i := &interpreter{s: s, lang: req.Language, dir: dir}
	if strings.Trim(req.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
		return nil, fmt.Errorf("%w: invalid interpreter name %q", backend.ErrInvalid, req.Name)
	}
	if req.Name != "" {
		i.dir = path.Join(dir, req.Name)
	}
	switch req.Language {
	case Python:
		i.argv = []string{"python3", "-u", "-c", driverPython, i.dir}
	case Node:
		i.argv = []string{"node", "-e", driverNode, i.dir}
	default:
		return nil, fmt.Errorf("%w: invalid interpreter %q: must be %s or %s", backend.ErrInvalid, req.Language, Python, Node)
	}
	return i, nil
}

// ensure starts the interpreter unless it runs. before reports whether there was one earlier.
func (i *interpreter) ensure(ctx context.Context, exec sandbox.ExecRequest) (started, before bool, err error) {
	id, err := i.running(ctx)
	switch {
	case err != nil:
		return false, false, err
	case id.lives:
		// It must outlive this program. One that has had all the time that a command can have ends at its timeout, as any.
		_ = i.s.Command(id.exec).Extend(ctx, idle)
		return false, true, nil
	}
	return true, id.exec != "", i.start(ctx, exec)
}

// known is the interpreter that the sandbox has, or had.
type known struct {
	exec  string // empty when there was none
	lives bool
}

func (i *interpreter) running(ctx context.Context) (known, error) {
	data, _, err := i.s.ReadFileBytes(ctx, path.Join(i.dir, i.lang+".exec"), sandbox.ReadFileOptions{Limit: maxExecID})
	if errors.Is(err, backend.ErrNotFound) {
		return known{}, nil
	}
	if err != nil {
		return known{}, err
	}
	k := known{exec: string(data)}
	st, err := i.s.Command(k.exec).Wait(ctx, 0)
	if errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrInvalid) { // of an earlier guest, or whatever a program wrote there
		return k, nil
	}
	k.lives = err == nil && !st.Done()
	return k, err
}

// start starts the interpreter and waits until it answers.
func (i *interpreter) start(ctx context.Context, req sandbox.ExecRequest) error {
	command, err := i.s.Start(ctx, sandbox.ExecRequest{
		Argv: i.argv, Timeout: sandbox.MaxExecTimeout, Env: req.Env, EnvBefore: req.EnvBefore, Services: req.Services,
	})
	if errors.Is(err, backend.ErrNotFound) {
		return fmt.Errorf("%s not found in the image: %w", i.argv[0], backend.ErrUnsupported)
	}
	if err != nil {
		return err
	}
	out, err := command.Read(ctx, sandbox.ReadRequest{Wait: startTime})
	var words strings.Builder
	for _, c := range out.Chunks {
		words.Write(c.Data)
	}
	switch {
	case err != nil:
		return err
	case strings.Contains(words.String(), "ready\n"), out.Status.Done() && out.Status.ExitCode == 0: // or another one serves already
		return nil
	}
	return fmt.Errorf("the interpreter did not start: %s: %w", strings.TrimSpace(words.String()), backend.ErrUnavailable)
}

// ended returns how the interpreter ended, if it has ended or is about to.
func (i *interpreter) ended(ctx context.Context) (st sandbox.ExecStatus, over bool) {
	k, _ := i.running(ctx) // without one, Wait fails
	res, err := i.s.Command(k.exec).Wait(ctx, endTime)
	return res.ExecStatus, err == nil && res.Done()
}

// end kills an interpreter that does not answer, and all processes of its programs, which may hold its socket.
func (i *interpreter) end(ctx context.Context) {
	if k, err := i.running(ctx); err == nil && k.exec != "" {
		_, _ = i.s.Command(k.exec).Signal(ctx, "") // the next program meets what is wrong
	}
}

// call has the interpreter run a program.
func (i *interpreter) call(ctx context.Context, code string, exec sandbox.ExecRequest) (sandbox.ExecResult, error) {
	return i.s.Exec(ctx, sandbox.ExecRequest{
		Argv: []string{embed.Path, "interpret", i.dir, i.lang}, Stdin: []byte(code), Timeout: exec.Timeout, Yield: exec.Yield,
		Background: exec.Background, HeadBytes: exec.HeadBytes, TailBytes: exec.TailBytes,
	})
}

// answers reports whether the interpreter takes another program.
func (i *interpreter) answers(ctx context.Context) bool {
	res, err := i.call(ctx, "", sandbox.ExecRequest{Timeout: probeTime})
	return err == nil && res.Status == sandbox.ExecCompleted && res.ExitCode == 0
}
