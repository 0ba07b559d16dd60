package tools

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/isolated"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// defaultRunTimeout is the time limit of sandbox_run when nobody names one.
const defaultRunTimeout = 120 * time.Second

// interpreter is how a runtime's code is run.
type interpreter struct {
	programs []string // in order of preference
	file     string
	env      map[string]string
}

func interpreterOf(r frontmatter.Runtime) interpreter {
	switch r {
	case frontmatter.RuntimeNode:
		return interpreter{programs: []string{"node", "nodejs"}, file: "main.js"}
	case frontmatter.RuntimeBash:
		return interpreter{programs: []string{"bash", "sh"}, file: "main.sh"}
	default:
		// Unbuffered, so that the output of a program that is cut short is not lost with it.
		return interpreter{programs: []string{"python3", "python"}, file: "main.py", env: map[string]string{"PYTHONUNBUFFERED": "1"}}
	}
}

// program picks an interpreter that the sandbox has.
func (i interpreter) program(found []string) string {
	for _, p := range i.programs {
		if slices.Contains(found, p) {
			return p
		}
	}
	return i.programs[0]
}

// runCode is sandbox_run: a sandbox of its own is made, used and removed, whatever happens.
func (b *binding) runCode(ctx context.Context, in runInput) (out runOutput, err error) {
	base, _ := session.BaseFromContext(ctx)
	own := cmp.Or(b.cfg.Runtime, frontmatter.Runtime(base.Language), frontmatter.RuntimePython)
	runtime := cmp.Or(frontmatter.Runtime(in.Runtime), own)
	how := interpreterOf(runtime)
	if fail := b.checkRun(in, runtime, how); fail != nil {
		return out, fail
	}
	wish := b.cfg.Runtime
	if runtime != own {
		wish = runtime // a model that names the agent's own runtime wishes for nothing new
	}
	req, _ := b.request(ctx, wish)
	run := b.run(ctx)
	s, _, err := b.openAs(ctx, run.Key(isolated.Name("run-"+session.NewID())), req)
	if runtime == own {
		noteOpened(ctx, err)
	}
	if err != nil {
		return out, err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if cerr := s.Close(clean); cerr != nil {
			b.box.log.ErrorContext(ctx, "cannot remove the sandbox of a run yet", "sandbox", s.ID(), "error", cerr)
		}
	}()
	if err := writeFiles(ctx, s, in, how.file); err != nil {
		return out, err
	}
	res, err := s.Exec(ctx, b.runRequest(in, how, s.Info()))
	if err != nil {
		return out, err
	}
	return newRunOutput(res, runtime, s.Info()), nil
}

func (b *binding) checkRun(in runInput, runtime frontmatter.Runtime, how interpreter) *toolspec.Error {
	if !slices.Contains(frontmatter.Runtimes(), runtime) {
		return toolspec.Failf(toolspec.CodeInvalid, "unknown runtime %q, it must be python, node or bash", sanitize.Clip(in.Runtime))
	}
	for _, name := range slices.Sorted(maps.Keys(in.Files)) {
		if path.IsAbs(name) {
			return toolspec.Failf(toolspec.CodeInvalid, "cannot write %s: the paths of files are relative to the work directory", sanitize.Clip(name))
		}
		if path.Clean(name) == how.file {
			return toolspec.Failf(toolspec.CodeInvalid, "files may not hold %s, which is where code is written to", how.file)
		}
	}
	if len(b.cfg.PipPackages) > 0 || len(b.cfg.NpmPackages) > 0 {
		return toolspec.Failf(toolspec.CodeUnsupported, "this agent asks for packages to be installed before the run, which is not supported").
			WithRemediation("Report it: whoever set the agent up should use an image that has the packages and remove pip_packages and npm_packages.")
	}
	return nil
}

// writeFiles writes the files of a run, the code last.
func writeFiles(ctx context.Context, s *session.Session, in runInput, file string) error {
	for _, name := range append(slices.Sorted(maps.Keys(in.Files)), file) {
		text := in.Files[name]
		if name == file {
			text = in.Code
		}
		_, err := s.WriteFile(ctx, name, strings.NewReader(text), session.WriteFileOptions{Size: int64(len(text)), Overwrite: true})
		if err != nil {
			e := toolspec.ErrorOf(err)
			e.Message = fmt.Sprintf("cannot write %s: %s", sanitize.Clip(name), e.Message)
			return e
		}
	}
	return nil
}

func (b *binding) runRequest(in runInput, how interpreter, info session.Info) session.ExecRequest {
	env := map[string]string{}
	for _, layer := range []map[string]string{how.env, b.cfg.Env, in.Env} {
		maps.Copy(env, layer)
	}
	head, tail := excerpt(b.streamChars)
	seconds := cmp.Or(in.TimeoutSeconds, b.cfg.TimeoutSeconds)
	return session.ExecRequest{
		Argv: append([]string{how.program(info.Programs), how.file}, in.Args...), Env: env,
		Timeout: cmp.Or(time.Duration(seconds)*time.Second, info.ExecTimeout, defaultRunTimeout), HeadBytes: head, TailBytes: tail,
	}
}

func newRunOutput(res session.ExecResult, runtime frontmatter.Runtime, info session.Info) runOutput {
	stdout, stderr := show(res.Stdout, "stdout", false), show(res.Stderr, "stderr", false)
	code := exitCode(res.Status, res.ExitCode, res.Signal)
	out := runOutput{
		OK: res.Status == session.ExecCompleted && code != nil && *code == 0, Runtime: string(runtime), ExitCode: code,
		DurationMS: res.Duration.Milliseconds(), Stdout: stdout.text, Stderr: stderr.text,
		Truncated: stdout.truncated || stderr.truncated,
	}
	switch res.Status {
	case session.ExecTimedOut:
		out.Error = toolspec.Failf(toolspec.CodeTimeout, "the program was ended after %d seconds, its timeout", int64(res.Timeout/time.Second))
	case session.ExecOOMKilled:
		out.Error = toolspec.Failf(toolspec.CodeQuota, "the program was killed: the memory limit of the sandbox was reached").
			WithRemediation("Work on less data at a time.")
		if limits := info.Limits; limits.MemoryBytes > 0 {
			out.Error.Message = fmt.Sprintf("the program was killed: the memory limit of %d MiB was reached", limits.MemoryBytes>>20)
		}
	case session.ExecQuotaKilled:
		out.Error = toolspec.Failf(toolspec.CodeQuota, "the program was ended: %s", overLimit(res, info))
	case session.ExecKilled:
		out.Error = toolspec.Failf(toolspec.CodeInternal, "the program was ended from outside")
	}
	return out
}
