// Package interpreter runs programs in a process of a sandbox. Like a notebook, the process keeps variables from one
// program to the next.
//
// The process is a command of the sandbox. It outlives the host program. It exits with the sandbox, after half an hour
// without use, 25 hours after its start, or if a program does not stop after the timeout.
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
	// dir contains the files through which interpreters and their clients find each other. It is below /tmp because these
	// files are not part of the workspace.
	dir = "/tmp/.workcell-interpreter"
	// idle is how long an interpreter runs without a call. The drivers have the same value.
	idle       = 30 * time.Minute
	startTime  = 30 * time.Second
	probeTime  = 15 * time.Second // more than GRACE in the drivers
	endTime    = time.Second      // time for the guest to notice the interpreter's exit
	maxResult  = 96 << 20         // maximum size of a result: eight images in base64
	maxExecID  = 256
	maxWords   = 64 << 10 // maximum output of an interpreter before it answers
	unanswered = 69       // exit code of workcell-guest interpret if no interpreter answers or it exited
)

// Request describes a program.
type Request struct {
	Language string // Python or Node
	Code     string
	// Name identifies one of several interpreters of a language. It may contain letters, digits, "-", and "_". It may be
	// empty.
	Name string
	// Exec contains the limits of the program: Timeout, Yield, Background, HeadBytes, and TailBytes. Started is called
	// with the program's command, whose id is Result.ExecID. If the program starts
	// the interpreter, Env, EnvBefore, and Services apply to the interpreter. The other fields must be zero.
	Exec sandbox.ExecRequest
}

// Result is the result of a program. Stdout and Stderr contain the program's output. After an exception, the exit code
// is 1 and Stderr contains the exception.
type Result struct {
	sandbox.ExecResult
	Value
	// Interpreter is the exec id of the interpreter. It may be empty if another program was starting it. Started reports
	// whether this program started it.
	Interpreter string
	Started     bool
	// Kept reports that the interpreter answers after an interrupted program.
	Kept bool
	// Lost reports a loss of the variables of earlier programs, because this program restarted the interpreter or
	// caused an exit.
	Lost bool
}

// Value is the value of a program's last expression.
type Value struct {
	Text   string // formatted by the language; empty without a value
	Images [][]byte
}

// Run runs a program in an interpreter with the variables of earlier programs. If the program reaches the timeout, it
// is interrupted. The interpreter keeps the variables if the program then stops within three seconds. If the image does
// not have the language, Run returns an error wrapping backend.ErrUnsupported.
func Run(ctx context.Context, s *sandbox.Sandbox, req Request) (Result, error) {
	i, err := open(s, req)
	if err != nil {
		return Result{}, err
	}
	res, err := i.ensure(ctx, req.Exec)
	if err != nil {
		return Result{}, err
	}
	if res.ExecResult, err = i.call(ctx, req.Code, req.Exec); err != nil || !res.Done() {
		return res, err
	}
	return Finish(ctx, s, req, res)
}

// Finish completes the result of a program that has ended after Run returned. It sets Value and Lost, and ends an
// unresponsive interpreter.
func Finish(ctx context.Context, s *sandbox.Sandbox, req Request, res Result) (Result, error) {
	i, err := open(s, req)
	if err != nil {
		return res, err
	}
	if res.Status != sandbox.ExecCompleted || res.ExitCode == unanswered {
		if ended, over := i.ended(ctx, res.Interpreter); over {
			res.Lost = true
			if res.Status == sandbox.ExecCompleted {
				res.Status, res.ExitCode, res.Signal = ended.Status, ended.ExitCode, ended.Signal
			}
		} else if !i.busy(ctx) {
			if res.Kept = i.answers(ctx); !res.Kept && !i.busy(ctx) {
				res.Lost = true
				i.end(ctx)
			}
		}
	}
	res.Value, err = Take(ctx, s, req.Name, res.ExecID)
	return res, err
}

// Take returns the value of an exited program in the interpreter with a name. It returns the value only once.
func Take(ctx context.Context, s *sandbox.Sandbox, name, execID string) (Value, error) {
	file := path.Join(dir, name, "result-"+path.Base(execID))
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
		return Value{}, nil // a program of the sandbox has overwritten the file
	}
	return Value{result.Value, result.Images}, nil
}

// Running returns the exec ids of a sandbox's interpreters, including exited ones. It skips interpreters whose files
// cannot be read.
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

// isTheirs reports whether a file cannot be read because a program of the sandbox changed it.
func isTheirs(err error) bool {
	kinds := []error{
		backend.ErrNotFound, backend.ErrPermission, backend.ErrInvalid, backend.ErrTooLarge, backend.ErrUnsupported,
	}
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

// interpreter is one interpreter of a sandbox.
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

// ensure starts the interpreter if it is not running. If it restarts the interpreter, res.Lost is true.
func (i *interpreter) ensure(ctx context.Context, exec sandbox.ExecRequest) (res Result, err error) {
	id, err := i.running(ctx)
	switch {
	case err != nil:
		return res, err
	case id.lives:
		// The interpreter must outlive this program. The command's maximum timeout still applies: after it, the interpreter
		// is killed like any command.
		_ = i.s.Command(id.exec).Extend(ctx, idle)
		return Result{Interpreter: id.exec}, nil
	}
	started, err := i.start(ctx, exec)
	res = Result{Interpreter: started, Started: started != "", Lost: id.exec != ""}
	if err == nil && started == "" { // another program was faster
		if now, rerr := i.running(ctx); rerr == nil && now.lives {
			res.Interpreter = now.exec
		}
	}
	return res, err
}

// known describes the sandbox's current or previous interpreter or program.
type known struct {
	exec  string // empty without one
	lives bool
}

func (i *interpreter) running(ctx context.Context) (known, error) { return i.known(ctx, ".exec") }

// known returns the command whose exec id is in a file of the interpreter.
func (i *interpreter) known(ctx context.Context, ext string) (known, error) {
	data, _, err := i.s.ReadFileBytes(ctx, path.Join(i.dir, i.lang+ext), sandbox.ReadFileOptions{Limit: maxExecID})
	if errors.Is(err, backend.ErrNotFound) {
		return known{}, nil
	}
	if err != nil {
		return known{}, err
	}
	k := known{exec: string(data)}
	st, err := i.s.Command(k.exec).Wait(ctx, 0)
	if errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrInvalid) { // of an earlier guest, or invalid
		return k, nil
	}
	k.lives = err == nil && !st.Done()
	return k, err
}

// start starts the interpreter and waits until it answers. It returns the exec id, or an empty string if another
// program was faster.
func (i *interpreter) start(ctx context.Context, req sandbox.ExecRequest) (id string, err error) {
	command, err := i.s.Start(ctx, sandbox.ExecRequest{
		Argv: i.argv, Timeout: sandbox.MaxExecTimeout, Env: req.Env, EnvBefore: req.EnvBefore, Services: req.Services,
	})
	if errors.Is(err, backend.ErrNotFound) {
		return "", fmt.Errorf("%s not found in the image: %w", i.argv[0], backend.ErrUnsupported)
	}
	if err != nil {
		return "", err
	}
	var words strings.Builder // the image may print warnings first
	out := sandbox.ReadResult{}
	for began := time.Now(); !out.Done && words.Len() < maxWords && time.Since(began) < startTime; {
		if out, err = command.Read(ctx, sandbox.ReadRequest{SinceSeq: out.NextSeq, Wait: startTime}); err != nil {
			return "", err
		}
		for _, c := range out.Chunks {
			words.Write(c.Data)
		}
		if strings.Contains(words.String(), "ready\n") {
			return command.ID(), nil
		}
		if out.Done && out.Status.ExitCode == 0 { // another is serving
			return "", nil
		}
	}
	text := strings.TrimSpace(words.String())
	return "", fmt.Errorf("the interpreter did not start: %s: %w", text, backend.ErrUnavailable)
}

// ended returns the exit status of the interpreter with an exec id if it has exited or is about to.
func (i *interpreter) ended(ctx context.Context, id string) (st sandbox.ExecStatus, over bool) {
	if id == "" {
		k, _ := i.running(ctx) // without an interpreter, Wait fails
		id = k.exec
	}
	res, err := i.s.Command(id).Wait(ctx, endTime)
	return res.ExecStatus, err == nil && res.Done()
}

// end kills an unresponsive interpreter, and all processes of its programs, because they may hold the socket.
func (i *interpreter) end(ctx context.Context) {
	if k, err := i.running(ctx); err == nil && k.exec != "" {
		_, _ = i.s.Command(k.exec).Signal(ctx, "") // the next program reports a failure
	}
}

// call makes the interpreter run a program.
func (i *interpreter) call(ctx context.Context, code string, exec sandbox.ExecRequest) (sandbox.ExecResult, error) {
	return i.s.Exec(ctx, sandbox.ExecRequest{
		Argv: []string{embed.Path, "interpret", i.dir, i.lang}, Stdin: []byte(code), Timeout: exec.Timeout, Yield: exec.Yield,
		Background: exec.Background, HeadBytes: exec.HeadBytes, TailBytes: exec.TailBytes, Started: exec.Started,
	})
}

// answers reports whether the interpreter accepts another program.
func (i *interpreter) answers(ctx context.Context) bool {
	res, err := i.call(ctx, "", sandbox.ExecRequest{Timeout: probeTime})
	return err == nil && res.Status == sandbox.ExecCompleted && res.ExitCode == 0
}

// busy reports whether a program that has not ended is running in the interpreter.
func (i *interpreter) busy(ctx context.Context) bool {
	k, err := i.known(ctx, ".now")
	return err != nil || k.lives
}
