package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// defaultRunTimeout is the default time limit of sandbox_run.
const defaultRunTimeout = 120 * time.Second

// launcher describes how to run code in a runtime.
type launcher struct {
	programs []string // in order of preference
	file     string
	env      map[string]string
}

// launcherOf returns the launcher of a runtime. For an unknown runtime, which checkRun refuses, it is empty.
func launcherOf(r frontmatter.Runtime) launcher {
	return map[frontmatter.Runtime]launcher{
		frontmatter.RuntimeNode: {programs: []string{"node", "nodejs"}, file: "main.js"},
		frontmatter.RuntimeBash: {programs: []string{"bash", "sh"}, file: "main.sh"},
		// Disable buffering, to keep the output of a killed program.
		frontmatter.RuntimePython: {programs: []string{"python3", "python"}, file: "main.py",
			env: map[string]string{"PYTHONUNBUFFERED": "1"}},
	}[r]
}

// program returns the preferred interpreter in found.
func (i launcher) program(found []string) string {
	at := slices.IndexFunc(i.programs, func(p string) bool { return slices.Contains(found, p) })
	return i.programs[max(at, 0)]
}

// runCode implements sandbox_run. It creates a private sandbox, runs the code, and always removes the sandbox.
func (b *binding) runCode(ctx context.Context, in runInput) (out runOutput, err error) {
	base, _ := session.BaseFromContext(ctx)
	own := cmp.Or(b.cfg.Runtime, frontmatter.Runtime(base.Language), frontmatter.RuntimePython)
	runtime := cmp.Or(frontmatter.Runtime(in.Runtime), own)
	how := launcherOf(runtime)
	if fail := b.checkRun(in, runtime, how); fail != nil {
		return out, fail
	}
	wish := b.cfg.Runtime
	if runtime != own {
		wish = runtime // the agent's own runtime is not a new requirement
	}
	req, _ := b.request(ctx, wish)
	run := b.run(ctx)
	s, _, err := b.openAs(ctx, run.Key(rules.IsolatedName("run-"+record.NewID())), req)
	if runtime == own {
		noteOpened(ctx, err)
	}
	if err != nil {
		return out, err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if cerr := s.Discard(clean); cerr != nil {
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
	return newRunOutput(res, runtime, b.evidence(ctx, s)), nil
}

// scriptsDir is the directory for programs of mode script while they run, relative to the workspace.
const scriptsDir = ".workcell/run"

// runScript implements sandbox_run in the run's shared sandbox, which keeps the files.
func (b *binding) runScript(ctx context.Context, in runInput) (out runOutput, err error) {
	base, _ := session.BaseFromContext(ctx)
	runtime := cmp.Or(frontmatter.Runtime(in.Runtime), b.cfg.Runtime, frontmatter.Runtime(base.Language),
		frontmatter.RuntimePython)
	how := launcherOf(runtime)
	how.file = path.Join(scriptsDir, record.NewID(), how.file)
	if fail := b.checkRun(in, runtime, how); fail != nil {
		return out, fail
	}
	s, err := b.sandbox(ctx, "")
	if err != nil {
		return out, err
	}
	defer func() {
		if code := toolspec.ErrorOf(err).Code; err != nil && (code == toolspec.CodeLost || code == toolspec.CodeClosed) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.opened[s.Key()] == s { // otherwise, another call has replaced it
				b.dead[s] = true // the next call opens another sandbox, because this mode has no sandbox_open
			}
		}
	}()
	defer b.removeScript(ctx, s, path.Dir(how.file))
	if err := writeFiles(ctx, s, in, how.file); err != nil {
		return out, err
	}
	left := path.Join(path.Dir(how.file), "result.json")
	req := b.runRequest(in, how, s.Info())
	req.Env["WORKCELL_RESULT"] = path.Join(s.Info().Workdir, left)
	host, err := b.hosts.grant(ctx, s, &req)
	if err != nil {
		return out, err
	}
	scriptModules(&req, runtime, s.Info().Workdir)
	res, err := s.Exec(ctx, req)
	counts := b.recordHostCalls(ctx, host, res)
	if err != nil {
		return out, err
	}
	b.track(s, res)
	out = newRunOutput(res, runtime, b.evidence(ctx, s))
	out.Value, out.HostCalls = leftResult(ctx, s, left), counts
	return out, nil
}

// scriptModules lets a program in a separate directory import modules from the workspace and the Workcell library.
func scriptModules(req *sandbox.ExecRequest, runtime frontmatter.Runtime, workdir string) {
	before := maps.Clone(req.EnvBefore)
	if before == nil {
		before = map[string]string{"PYTHONPATH": embed.Dir + "/lib/python", "NODE_PATH": embed.Dir + "/lib/node"}
	}
	req.EnvBefore = before
	switch runtime {
	case frontmatter.RuntimePython:
		before["PYTHONPATH"] += ":" + workdir
	case frontmatter.RuntimeNode:
		before["NODE_PATH"] += ":" + workdir + "/node_modules"
		req.Argv = slices.Insert(req.Argv, 1, "--require", embed.Dir+"/lib/node/workcell/global.cjs")
	}
}

// maxResultBytes is the maximum size of a program's result.
const maxResultBytes = 64 << 10

// leftResult returns the result of a program, or nil if it has none.
func leftResult(ctx context.Context, s *session.Session, name string) (value any) {
	data, info, err := s.ReadFileBytes(ctx, name, sandbox.ReadFileOptions{Limit: maxResultBytes})
	if err != nil || info.Size > maxResultBytes || json.Unmarshal(data, &value) != nil {
		return nil
	}
	return value
}

// removeScript removes a program's file after the program was started. A running program has already been read by the
// interpreter.
func (b *binding) removeScript(ctx context.Context, s *session.Session, dir string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if _, err := s.RemoveFile(ctx, dir, true); err != nil && !isGone(err) {
		b.box.log.WarnContext(ctx, "cannot remove a program that has run", "sandbox", s.ID(), "error", err)
	}
}

func (b *binding) checkRun(in runInput, runtime frontmatter.Runtime, how launcher) *toolspec.Error {
	if !slices.Contains(frontmatter.Runtimes(), runtime) {
		return toolspec.Failf(toolspec.CodeInvalid, "unknown runtime %q: must be python, node, or bash",
			sanitize.Clip(in.Runtime))
	}
	for _, name := range slices.Sorted(maps.Keys(in.Files)) {
		if path.IsAbs(name) {
			return toolspec.Failf(toolspec.CodeInvalid, "cannot write %s: paths must be relative to the working directory",
				sanitize.Clip(name))
		}
		if path.Clean(name) == how.file {
			return toolspec.Failf(toolspec.CodeInvalid, "files must not contain %s, which is the path of code", how.file)
		}
	}
	return nil
}

// writeFiles writes the files of a run, and the code last.
func writeFiles(ctx context.Context, s *session.Session, in runInput, file string) error {
	for _, name := range append(slices.Sorted(maps.Keys(in.Files)), file) {
		text := in.Files[name]
		if name == file {
			text = in.Code
		}
		_, err := s.WriteFile(ctx, name, strings.NewReader(text),
			sandbox.WriteFileOptions{Size: int64(len(text)), Overwrite: true})
		if err != nil {
			e := toolspec.ErrorOf(err)
			e.Message = fmt.Sprintf("cannot write %s: %s", sanitize.Clip(name), e.Message)
			return e
		}
	}
	return nil
}

func (b *binding) runRequest(in runInput, how launcher, info session.Info) sandbox.ExecRequest {
	env := map[string]string{}
	for _, layer := range []map[string]string{how.env, b.cfg.Env, in.Env} {
		maps.Copy(env, layer)
	}
	head, tail := excerpt(b.streamChars)
	seconds := cmp.Or(in.TimeoutSeconds, b.cfg.TimeoutSeconds)
	return sandbox.ExecRequest{
		Argv: append([]string{how.program(info.Programs), how.file}, in.Args...), Env: env,
		Timeout:   cmp.Or(time.Duration(seconds)*time.Second, info.ExecTimeout, defaultRunTimeout),
		HeadBytes: head, TailBytes: tail,
	}
}

func newRunOutput(res sandbox.ExecResult, runtime frontmatter.Runtime, of sandbox.Evidence) runOutput {
	stdout, stderr := show(res.Stdout, "stdout", false), show(res.Stderr, "stderr", false)
	code := exitCode(res.Status, res.ExitCode, res.Signal)
	out := runOutput{
		OK: res.Status == sandbox.ExecCompleted && code != nil && *code == 0, Runtime: string(runtime), ExitCode: code,
		DurationMS: res.Duration.Milliseconds(),
		Stdout:     stdout.text, Stderr: withNotice(stderr.text, limitNotice(res)),
		Truncated: stdout.truncated || stderr.truncated, hostCounts: hostCounts{Refused: res.Refused},
		Evidence: of,
	}
	switch res.Status {
	case sandbox.ExecTimedOut:
		out.Error = toolspec.Failf(toolspec.CodeTimeout, "the program timed out after %d seconds",
			int64(res.Timeout/time.Second))
	case sandbox.ExecOOMKilled, sandbox.ExecQuotaKilled:
		out.Error = toolspec.Failf(toolspec.CodeQuota, "the program was killed: %s", res.Limit).
			WithRemediation("Use less memory, write smaller files, or delete files that you no longer need.")
	case sandbox.ExecKilled:
		out.Error = toolspec.Failf(toolspec.CodeInternal, "the program was killed from outside")
	}
	return out
}
