//go:build !no_postgres

package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/parcel"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
	"github.com/workcell-dev/workcell/workflow/worker"
)

// queue is the queue of runs, with the directory for the results on this host.
type queue struct {
	*worker.Queue
	kept runfiles.Dir
}

// openQueue opens the queue in the state database.
func (a *App) openQueue(ctx context.Context, what string) (*queue, error) {
	place, err := a.State()
	if err != nil {
		return nil, err
	}
	if place.URL == "" {
		return nil, UsageError(fmt.Errorf("%s requires a PostgreSQL state database", what),
			"set WORKCELL_STATE or pass --state postgres://user@host/database, or run workflows without --detach")
	}
	q, err := worker.Open(ctx, place.URL)
	if err != nil {
		return nil, err
	}
	q.Journal().Transcripts = a.keepsTranscripts()
	return &queue{q, runsIn(place.Dir)}, nil
}

// Detach adds a run to the queue and returns the first journal entry.
func (a *App) Detach(ctx context.Context, p *Program, input map[string]any) (workflow.Entry, error) {
	flags := a.opts.runFlags
	flags.Defaults = &session.Defaults{
		Isolation: a.opts.Isolation, OCIRuntime: a.opts.OCIRuntime,
		Mounts: make([]backend.Mount, len(a.opts.Mounts)), // only their number matters
	}
	if name, todo := flags.localFlag(); name != "" {
		return workflow.Entry{}, UsageError(fmt.Errorf("--%s cannot be used with --detach", name), todo)
	}
	q, err := a.openQueue(ctx, "--detach")
	if err != nil {
		return workflow.Entry{}, err
	}
	defer q.Close()
	e, err := p.Begin(input)
	if err != nil {
		return e, runError(err)
	}
	note, err := a.detachedNote(p.Workflow)
	if err != nil {
		return e, err
	}
	if err := a.sendFiles(ctx, q, e.RunID, p, ""); err != nil {
		return e, err
	}
	if err := q.Add(ctx, e, note); err != nil {
		return e, errors.Join(err, q.Drop(context.WithoutCancel(ctx), e.RunID, ""))
	}
	return e, nil
}

// detachedNote returns the note of a run for the worker. The paths in it are only for information, because
// the worker uses the files in the parcel.
func (a *App) detachedNote(wf *workflow.Workflow) (string, error) {
	o := a.opts
	n := runNote{Detached: true, Workflow: wf.Path, runFlags: runFlags{
		Backend: o.Backend, Model: o.Model, Prices: o.Prices, Keep: o.Keep, User: o.User, Workspace: a.place(wf).Dir,
	}}
	if err := absolute(&n.Workflow, &n.Prices, &n.Workspace); err != nil {
		return "", err
	}
	raw, err := json.Marshal(n)
	return string(raw), err
}

// sendFiles stores the files of a run in the queue. base is the original workspace of the run. It is empty for a new
// run.
func (a *App) sendFiles(ctx context.Context, q *queue, runID string, p *Program, base string) (err error) {
	files := parcel.Files{Workflow: p.Path, Agents: p.Files, Prices: a.opts.Prices, Base: base}
	files.Script, _ = scriptOf(a.opts.Model)
	if files.Skills, err = skillsOf(p.Files); err != nil {
		return err
	}
	workspace := a.place(p.Workflow)
	if base != "" {
		workspace = transfer.Place{}
	}
	if err := a.checkWorkspace(ctx, p.Workflow, workspace); err != nil {
		return err
	}
	err = parcel.Send(ctx, q.Queue, runID, files, workspace)
	switch {
	case errors.Is(err, parcel.ErrWorkspace):
		return Fail(ExitInvalid, fmt.Errorf("workspace %s: %w", workspace.Dir, err),
			"pass the directory to copy with --workspace DIR")
	case errors.Is(err, backend.ErrTooLarge):
		return Fail(ExitInvalid,
			fmt.Errorf("the packed files of the run, including its workspace, exceed %d MiB", worker.MaxFileBytes>>20),
			"remove files from the workspace that the run can download, or run without --detach")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return Fail(ExitInvalid, err, "")
	}
	return err
}

// skillsOf checks agents and returns the directories of their skills.
func skillsOf(agents map[string]string) (map[string][]string, error) {
	skills := map[string][]string{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(agents)) {
		doc, err := tools.CheckAgent(agents[name])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		skills[name], err = Skills(doc)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, Fail(ExitInvalid, err, "")
	}
	return skills, nil
}

// enqueue adds an interrupted run to the queue, with the current local files.
func (a *App) enqueue(ctx context.Context, r runstore.Run, n runNote) error {
	q, err := a.openQueue(ctx, "--detach")
	if err != nil {
		return err
	}
	defer q.Close()
	if n.Detached { // the queue already has all files
		return q.Hand(ctx, r, r.Note)
	}
	if name, _ := n.localFlag(); name != "" {
		return UsageError(fmt.Errorf("run %s was started with --%s, which cannot be used with --detach", r.ID, name),
			"resume it without --detach: workcell runs resume "+r.ID)
	}
	p, err := LoadProgram(n.Workflow, n.Agents)
	if err != nil {
		return err
	}
	if p.Hash != r.Hash {
		return Fail(ExitInvalid, fmt.Errorf("%s: %w", n.Workflow, workflow.ErrChanged), "restore the original file")
	}
	base := q.kept.Base(r.ID)
	if _, err := os.Stat(base); err != nil {
		base = "" // no sandbox was started with it
	}
	b := a.withFlags(n.runFlags)
	note, err := b.detachedNote(p.Workflow)
	if err == nil {
		err = b.sendFiles(ctx, q, r.ID, p, base)
	}
	if err != nil {
		return err
	}
	// Between these calls, a worker on this host may take the run, and the process may die.
	if err := q.kept.KeepNote(r.ID, note, r.Note); err != nil {
		return err
	}
	if err := q.Hand(ctx, r, note); err != nil {
		return err
	}
	return q.kept.KeepNote(r.ID, note)
}

// localFlag returns a flag of a run for one host only, or the flag for a configured value of this kind, and a
// hint for --detach. Both are empty if there is no such flag.
func (f runFlags) localFlag() (name, todo string) {
	d := cmp.Or(f.Defaults, &session.Defaults{})
	const there = "pass it to `workcell worker`, or configure it on the worker's host"
	const later = "collect the results later with `workcell runs get RUN` or `workcell runs apply RUN`"
	for _, flag := range []struct {
		name string
		set  bool
		todo string
	}{
		{"allow-image", f.AllowImage != nil, there}, {"map-image", f.MapImage != nil, there},
		{"audit", f.Audit != "", there}, {"audit-hash", f.AuditHash, there},
		{"pip-index", f.PipIndex != "", there}, {"npm-registry", f.NpmRegistry != "", there},
		{"egress-allow-private", f.EgressAllowPrivate != nil, there}, {"host-tools", f.HostTools != "", there},
		{"isolation", d.Isolation != "", there}, {"oci-runtime", d.OCIRuntime != "", there},
		{"mount", len(d.Mounts) > 0, there}, {"trace-content", f.TraceContent, there},
		{"out", f.Out != "", later}, {"force", f.Force, later}, {"apply", f.Apply, later},
	} {
		if flag.set {
			return flag.name, flag.todo
		}
	}
	return "", ""
}

// fetchProgram returns the program of a run from the queue. The caller must close it.
func (a *App) fetchProgram(ctx context.Context, r runstore.Run, n *runNote) (*Program, error) {
	q, err := a.openQueue(ctx, "a detached run")
	if err != nil {
		return nil, err
	}
	p, err := a.fetchRun(ctx, q, r, n)
	if err != nil {
		q.Close()
		return nil, err
	}
	remove := p.close
	p.onKept, p.close = a.keepIn(q), func() {
		remove()
		q.Close()
	}
	return p, nil
}

// fetchRun copies the files of a run to this host, returns them as a program, and updates the paths in n. The caller
// must close the program.
func (a *App) fetchRun(ctx context.Context, q *queue, r runstore.Run, n *runNote) (_ *Program, err error) {
	dir, err := q.kept.Needs(r.ID)
	if err != nil {
		return nil, err
	}
	remove := func() {
		if err := os.RemoveAll(dir); err != nil {
			a.Notice("cannot remove files of run %s from %s: %v", r.ID, dir, err)
		}
		_ = os.Remove(q.kept.Of(r.ID)) // fails if the directory contains other files
	}
	defer func() {
		if err != nil {
			remove()
		}
	}()
	files, err := parcel.Fetch(ctx, q.Queue, r.ID, q.kept, dir)
	if err != nil {
		return nil, err
	}
	// A writer of the database must not choose files on this host. Therefore, use only the parcel, and only flags without
	// file names.
	n.runFlags = runFlags{Backend: n.Backend, Model: n.Model, Prices: files.Prices, Keep: n.Keep, User: n.User}
	if files.Script != "" {
		n.Model = scripted.Provider + "/" + files.Script
	} else if _, scripted := scriptOf(n.Model); scripted {
		return nil, Fail(ExitInvalid, fmt.Errorf("the run's files do not include the script of %s", n.Model), "")
	}
	file := files.Workflow
	if name, ok := strings.CutSuffix(filepath.Base(file), AgentExt); ok {
		file = files.Agents[name] // next to the partials
	}
	wf, err := loadFile(file, func(name string) (*frontmatter.Document, error) {
		path, ok := files.Agents[name]
		if !ok {
			return nil, fmt.Errorf("the run's files do not include %s%s", name, AgentExt)
		}
		return readAgent(path)
	})
	if err != nil {
		return nil, Fail(ExitInvalid, err, "")
	}
	return &Program{Workflow: wf, Files: files.Agents, close: remove}, nil
}

// keepIn returns a function to store the results of a run in the queue for all hosts.
func (a *App) keepIn(q *queue) func(context.Context, string) error {
	return func(ctx context.Context, runID string) error {
		err := parcel.KeepMade(ctx, q.Queue, runID, q.kept)
		if errors.Is(err, backend.ErrTooLarge) {
			a.Notice("the results exceed %d MiB and are not in the database; see %s on host %s",
				worker.MaxFileBytes>>20, q.kept.Of(runID), hostname())
			return nil
		}
		return err
	}
}

// openFetched opens the results of a run on another host.
func (a *App) openFetched(ctx context.Context, runID string) (string, *runfiles.Archive, error) {
	q, err := a.openQueue(ctx, "a detached run")
	if err != nil {
		return "", nil, err
	}
	defer q.Close()
	if err := parcel.FetchMade(ctx, q.Queue, runID, q.kept); errors.Is(err, backend.ErrNotFound) {
		return "", nil, Fail(ExitNotFound, fmt.Errorf("no results of run %s in the database, or they are too large", runID),
			"to find their host, run `workcell runs logs "+runID+"`")
	} else if err != nil {
		return "", nil, err
	}
	made, err := q.kept.Open(runID)
	return runID, made, err
}

// dropFiles deletes the files of a run from the queue.
func (a *App) dropFiles(ctx context.Context, runID string) error {
	q, err := a.openQueue(ctx, "a detached run")
	if err != nil {
		return err
	}
	defer q.Close()
	return q.Drop(ctx, runID, "")
}

// isQueued reports whether a run is in the queue.
func (a *App) isQueued(ctx context.Context, runID string) (bool, error) {
	q, err := a.openQueue(ctx, "a detached run")
	if err != nil {
		return false, err
	}
	defer q.Close()
	return q.Has(ctx, runID)
}

// ShowLog prints the log of a run and returns the run. If follow is set, see [worker.Queue.FollowLog].
func (a *App) ShowLog(ctx context.Context, w io.Writer, r runstore.Run, follow bool) (runstore.Run, error) {
	q, err := a.openQueue(ctx, "the log of a run")
	if err != nil {
		return r, err
	}
	defer q.Close()
	if follow {
		return q.FollowLog(ctx, r.ID, w)
	}
	text, _, _, err := q.ReadLog(ctx, r.ID, 0)
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	return r, err
}

// cancelElsewhere asks a worker with access to the engine of a run's sandboxes to cancel the run, and waits for the
// end. If no such worker exists, it returns why.
func (a *App) cancelElsewhere(
	ctx context.Context, j runstore.Store, runID string, wait time.Duration, why error,
) error {
	q, err := a.openQueue(ctx, "a detached run")
	if err != nil {
		return err
	}
	defer q.Close()
	if err := errors.Join(j.AskCancel(ctx, runID), q.Hurry(ctx, runID)); err != nil {
		return err
	}
	late, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if !runstore.Await(late, j, runID, time.Second, func(r runstore.Run, got error) bool {
		err = got
		return err != nil || !r.Finished.IsZero()
	}) {
		return Fail(ExitFailed, fmt.Errorf("no worker stopped run %s within %s: %w", runID, wait, why),
			"start `workcell worker` on the host of that engine; it will end the run")
	}
	return err
}

// hostname returns the name of this host for logs.
func hostname() string {
	name, _ := os.Hostname()
	return cmp.Or(strings.TrimSpace(name), "a worker")
}
