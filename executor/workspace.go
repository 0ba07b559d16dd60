package executor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor/skill"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Resume specifies when a CLI resumes the session of an earlier run.
type Resume string

// Values of Resume. The zero value means ResumeNever.
const (
	ResumeNever   Resume = "never"   // each run starts a new session
	ResumeStep    Resume = "step"    // resume if Options.Step is equal
	ResumeSession Resume = "session" // every run of the agent in this workspace resumes
)

// state describes the session of an agent's latest run. It is stored in the workspace, so it is removed together with
// the session. Code in the sandbox can change it.
type state struct {
	// sandbox of the writer; a file from a repository has another value and is ignored.
	Sandbox string `json:"sandbox"`
	Session string `json:"session"`
	Step    string `json:"step,omitempty"`
	Told    Usage  `json:"told"` // usage of the whole session
}

const (
	filePerm = 0o600
	dirPerm  = 0o700
	maxState = 64 << 10
)

// validAgent matches file names. validID matches session ids, which are untrusted and must be safe on a command line.
var (
	validAgent = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$`)
	validID    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,127}$`)
)

func (r *run) stateFile() string {
	return path.Join(r.work, wire.PrivateDir, "executor", r.o.Agent+".json")
}

// resume sets the session to resume, or the id of a new session.
func (r *run) resume(ctx context.Context) error {
	r.t.NewID = uuid.NewString()
	if r.t.ResumeID == "" && (r.o.Resume == ResumeStep || r.o.Resume == ResumeSession) {
		b, _, err := r.s.ReadFileBytes(ctx, r.stateFile(), sandbox.ReadFileOptions{Limit: maxState})
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return err
		}
		var was state
		wanted := json.Unmarshal(b, &was) == nil &&
			(r.o.Resume == ResumeSession || r.o.Step != "" && was.Step == r.o.Step)
		if wanted && was.Sandbox == r.s.ID() && validID.MatchString(was.Session) {
			r.state, r.t.ResumeID = was, was.Session
		}
	}
	r.res.Resumed = r.t.ResumeID != ""
	return nil
}

// remember records the session and the reported usage for a later run to resume. It also runs while the CLI is working,
// to allow another process to continue if this process dies.
func (r *run) remember(ctx context.Context, told Usage) error {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	// Plain data, so the error is always nil.
	b, _ := json.Marshal(state{Sandbox: r.s.ID(), Session: r.seen.Session, Step: r.o.Step, Told: told})
	return r.write(ctx, File{Path: r.stateFile(), Data: b})
}

// rememberEnd records the current session.
func (r *run) rememberEnd(ctx context.Context) {
	if r.seen.Session == "" {
		return
	}
	// If this fails, the next run starts a new session.
	if err := r.remember(ctx, *cmp.Or(r.whole, &r.state.Told)); err != nil {
		r.res.HookErrors = append(r.res.HookErrors, "cannot resume the session: "+err.Error())
	}
}

// clean creates the directory of the CLI's settings. It keeps only sessions, if one of them is resumed. Skills of the
// home directory are removed, because the CLI would run code of an earlier command from them.
func (r *run) clean(ctx context.Context) error {
	keep := r.inv.Keep
	if !r.res.Resumed {
		keep = nil
	}
	if err := prune(ctx, r.s, r.settings, keep); err != nil {
		return err
	}
	if r.inv.Home == "" { // with any settings, CLIs look for skills in these directories
		for _, name := range []string{".agents", ".claude", ".opencode"} {
			if err := prune(ctx, r.s, path.Join(r.home(), name), nil); err != nil {
				return err
			}
		}
	}
	if _, err := r.s.MakeDir(ctx, r.settings, dirPerm); err != nil && !errors.Is(err, backend.ErrExists) {
		return err
	}
	return nil
}

// furnish writes the CLI's settings and skills. It removes the settings and skills of earlier commands, for example
// hooks.
func (r *run) furnish(ctx context.Context) error {
	if err := r.clean(ctx); err != nil {
		return err
	}
	for _, f := range r.inv.Files {
		if err := r.write(ctx, f); err != nil {
			return err
		}
	}
	if len(r.o.Skills) > 0 {
		dir := path.Join(cmp.Or(r.inv.Home, r.home()), skill.Dir(r.d.Name()))
		return skill.Install(ctx, r.s.Sandbox, r.o.Skills, dir)
	}
	return nil
}

func (r *run) write(ctx context.Context, f File) error {
	_, err := r.s.WriteFile(ctx, f.Path, bytes.NewReader(f.Data), sandbox.WriteFileOptions{
		Mode: filePerm, Overwrite: true, Size: int64(len(f.Data)),
	})
	return err
}

// prune removes everything in dir except keep, which are paths relative to dir. It removes links.
func prune(ctx context.Context, s *session.Session, dir string, keep []string) error {
	list, err := sandbox.FileList{}, error(nil)
	if len(keep) > 0 {
		list, err = s.ListFiles(ctx, dir, sandbox.ListFilesOptions{Limit: sandbox.MaxListEntries})
	}
	if len(keep) == 0 || err != nil || list.Truncated {
		if _, err = s.RemoveFile(ctx, dir, true); errors.Is(err, backend.ErrNotFound) {
			return nil
		}
		return err
	}
	for _, e := range list.Entries {
		name := path.Base(e.Path)
		inside, all := below(keep, name)
		if all && (e.Type == sandbox.TypeDir || e.Type == sandbox.TypeFile) {
			continue
		}
		if e.Type != sandbox.TypeDir {
			inside = nil
		}
		if err := prune(ctx, s, path.Join(dir, name), inside); err != nil {
			return err
		}
	}
	return nil
}

// below returns the paths of keep in directory name. all reports whether the whole directory is kept.
func below(keep []string, name string) (inside []string, all bool) {
	for _, k := range keep {
		first, rest, more := strings.Cut(k, "/")
		switch {
		case first != name:
		case more:
			inside = append(inside, rest)
		default:
			all = true
		}
	}
	return inside, all
}

// before runs the hooks before the CLI.
func (r *run) before(ctx context.Context) error {
	for _, command := range r.o.Before {
		if err := r.hook(ctx, command); err != nil {
			return fmt.Errorf("before: %w", err)
		}
	}
	return nil
}

// after runs all hooks after the CLI.
func (r *run) after(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, closingTime)
	defer cancel()
	for _, command := range r.o.After {
		if err := r.hook(ctx, command); err != nil {
			r.res.HookErrors = append(r.res.HookErrors, "after: "+err.Error())
		}
	}
}

// hook runs a user's command in the workspace.
func (r *run) hook(ctx context.Context, command string) error {
	res, err := r.s.Exec(ctx, sandbox.ExecRequest{Command: command, TailBytes: stderrTail})
	switch {
	case err != nil:
		return err
	case res.Status != sandbox.ExecCompleted || res.Signal != "":
		text := fmt.Sprintf("%q: %s %s", command, res.Status, res.Signal)
		return &sanitize.Error{Text: strings.TrimSpace(text), Err: ErrFailed}
	case res.ExitCode != 0:
		var last tail
		_, _ = last.Write(res.Stderr.Bytes()) // never fails
		text := fmt.Sprintf("%q: exit code %d: %s", command, res.ExitCode, last.String())
		// The error hides the message of ErrFailed, because a hook failed, not the coding agent.
		return &sanitize.Error{Text: strings.TrimSuffix(text, ": "), Err: ErrFailed}
	}
	return nil
}
