package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// RunFiles returns the directory for the results of runs.
func (a *App) RunFiles() (runfiles.Dir, error) {
	dir, err := a.stateDir()
	return runsIn(dir), err
}

func runsIn(dir state.Dir) runfiles.Dir { return runfiles.Dir(dir.Path("runs")) }

// runFiles is like App.RunFiles.
func (m *Manager) runFiles() runfiles.Dir { return runsIn(m.place.Dir) }

// snapshotsIn returns an owner's directory for the initial files of sandboxes without a later process. The state file
// and each database have separate directories, because they have different owners.
func snapshotsIn(place state.Place, owner string) runfiles.Dir {
	name := "snapshots"
	if place.URL != "" {
		name += fmt.Sprintf("-%x", sha256.Sum256([]byte(place.URL)))
	}
	return runfiles.Dir(place.Dir.Path(name, owner))
}

// dropSnapshots deletes the snapshots of dead owners.
func dropSnapshots(ctx context.Context, j runstore.Store, place state.Place) error {
	all := snapshotsIn(place, "")
	owners, err := all.Runs()
	errs := []error{err}
	for _, owner := range owners {
		lives, err := j.Lives(ctx, owner)
		if errs = append(errs, err); err == nil && !lives {
			errs = append(errs, all.Remove(owner))
		}
	}
	return errors.Join(errs...)
}

// dropBegun deletes the initial files of finished runs. They remain if a process was killed at the end of the
// run, or before another process ended the run.
func dropBegun(ctx context.Context, j runstore.Store, kept runfiles.Dir) error {
	ids, err := kept.Begun()
	errs := []error{err}
	for _, id := range ids {
		if r, err := j.Run(ctx, id); err == nil && !r.Finished.IsZero() {
			errs = append(errs, kept.RemoveBegun(id, time.Now().Add(-time.Hour)))
		}
	}
	return errors.Join(errs...)
}

// pruneRuns deletes old finished runs with their results, and leftover files of dead processes.
func (a *App) pruneRuns(ctx context.Context, j runstore.Store) {
	conf, err := a.Config()
	if err != nil {
		a.Logger().Warn("cannot remove old runs", "error", err)
		return
	}
	old := time.Now().Add(-conf.KeepRuns)
	_, err = j.Prune(ctx, old)
	_, textErr := j.PruneTranscripts(ctx, time.Now().Add(-conf.KeepTranscripts))
	_, askErr := a.Approvals(ctx, j)
	place, placeErr := a.State()
	if err = errors.Join(err, textErr, askErr, placeErr); err == nil {
		kept := runsIn(place.Dir)
		err = errors.Join(dropSnapshots(ctx, j, place), dropBegun(ctx, j, kept), kept.Prune(old, func(run string) bool {
			_, err := j.Run(ctx, run)
			return !errors.Is(err, backend.ErrNotFound)
		}))
	}
	if err != nil {
		a.Logger().Warn("cannot remove old runs", "error", err)
	}
}

// ForgetOldRuns is like pruneRuns, for callers without an open journal.
func (a *App) ForgetOldRuns(ctx context.Context) error {
	j, err := a.OpenJournal(ctx)
	if err != nil {
		return err
	}
	defer j.Close() // undeleted runs are deleted next time
	a.pruneRuns(ctx, j)
	return nil
}

// checkHome checks flags for impossible results. It returns the output directory with links resolved,
// and the existing files.
func (a *App) checkHome(want []string, workspace string) (dir string, before patch.Stamps, err error) {
	switch {
	case a.opts.Apply && workspace == "":
		return "", nil, UsageError(errors.New("--apply requires a workspace that is copied from a directory"),
			"pass --workspace DIR")
	case a.opts.Force && a.opts.Out == "":
		return "", nil, UsageError(errors.New("--force requires --out DIR"), "")
	case a.opts.Out == "":
		return "", nil, nil
	case len(want) == 0:
		return "", nil, UsageError(errors.New("--out: the file defines no outputs"),
			`add them, for example outputs: [report.csv, "dist/**"]`)
	}
	if dir, err = WithoutLinks(a.opts.Out); err != nil {
		// Resolve links now, to avoid following a link created during the run.
		return "", nil, UsageError(fmt.Errorf("--out: %w", err), "")
	}
	return dir, patch.Stamp(dir, rules.Globs(want).In(os.DirFS(dir))), nil
}

// WithoutLinks returns the path of a directory with links resolved. The directory may be missing.
func WithoutLinks(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("DIR is empty")
	}
	exact, err := filepath.EvalSymlinks(dir)
	if above := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && above != dir {
		exact, err = WithoutLinks(above)
		exact = filepath.Join(exact, filepath.Base(dir))
	}
	return exact, err
}

// bringHome writes the results of a run to the destinations in the flags, and prints how to get the rest. before
// contains the files in --out when the run began.
func (h *host) bringHome(res *workflow.Result, before patch.Stamps, succeeded bool) error {
	for _, name := range res.Missing {
		h.p.Line("optional output %s not found", name)
	}
	if h.opts.Apply && !succeeded {
		h.p.Line("--apply: changes not applied because the run did not succeed")
	}
	var err error
	switch n := len(res.Outputs); {
	case n == 0:
	case h.opts.Out != "":
		err = h.PutOutputs(res.Outputs, h.opts.Out, before, h.opts.Force,
			fmt.Sprintf("to overwrite files that differ, run: workcell runs get %s . %s --force", res.RunID,
				hint.Quote(h.opts.Out)))
	default:
		h.p.Line("%s collected; to list them, run: workcell runs files %s", Counted(n, "output"), res.RunID)
	}
	switch {
	case res.Patch == nil && h.opts.Apply && succeeded:
		return errors.Join(err,
			Fail(ExitFailed, errors.New("--apply: the run has no patch"),
				"its steps used separate sandboxes; only a shared sandbox has a patch"))
	case res.Patch == nil:
		return err
	case len(res.Patch.Changes)+len(res.Patch.Omitted) == 0:
		if h.opts.Apply && succeeded {
			h.p.Line("nothing to apply: the run changed no files in %s", res.Workspace)
		}
		return err
	}
	h.p.Line("%s", res.Patch.Stat())
	ListFew(res.Patch.Omitted, h.p.Line, "not included in the patch: %s: %s")
	if len(res.Patch.Changes) == 0 {
		return err
	}
	if h.opts.Apply && succeeded {
		return errors.Join(err, h.Apply(res.RunID, res.Patch, res.Workspace, false))
	}
	h.p.Line("to apply the changes to %s, run: workcell runs apply %s", res.Workspace, res.RunID)
	return err
}

// Counted returns a number with a noun, in singular or plural, for example "1 file" and "2 files".
func Counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// PutOutputs writes outputs into a directory. todo is the hint for files that it did not overwrite.
func (a *App) PutOutputs(made patch.Tree, dir string, before patch.Stamps, force bool, todo string) error {
	res, err := made.Write(dir, before, force)
	if len(res.Applied) > 0 {
		a.Notice("%s written to %s", Counted(len(res.Applied), "file"), dir)
	}
	if err != nil {
		return err
	}
	return a.conflicts(res, dir, todo)
}

// Apply applies the patch of a run to a directory. If mark is set, it writes conflict markers.
func (a *App) Apply(run string, p *patch.Patch, dir string, mark bool) error {
	apply := p.Apply
	if mark {
		apply = p.ApplyMarked
	}
	res, err := apply(dir)
	if n := len(res.Applied) + len(res.Merged); n > 0 {
		a.Notice("%s changed in %s", Counted(n, "file"), dir)
	} else if err == nil && len(res.Conflicts)+len(res.Marked) == 0 {
		a.Notice("nothing to change: %s already has the changes", dir)
	}
	for _, name := range res.Merged {
		a.Notice("merged with local changes: %s", name)
	}
	if err != nil {
		return err
	}
	for _, name := range res.Marked {
		a.Notice("has conflict markers: %s", name)
	}
	if len(res.Conflicts) == 0 && len(res.Marked) > 0 {
		err := fmt.Errorf("%s in %s with conflict markers", Counted(len(res.Marked), "file"), dir)
		return Fail(ExitConflict, err, "edit the files to resolve the conflicts")
	}
	todo := "the skipped files are unchanged; to see the changes of one, run `workcell runs diff " + run + " PATH`"
	if !mark {
		todo += "; to write both versions of the lines into text files, add --conflict-markers to `workcell runs apply`"
	}
	return a.conflicts(res, dir, todo)
}

// conflicts prints the conflicting files, which were not changed, and returns an error for them.
func (a *App) conflicts(res patch.Result, dir, todo string) error {
	if len(res.Conflicts) == 0 {
		return nil
	}
	ListFew(res.Conflicts, a.Notice, "skipped: %s: %s")
	return Fail(ExitConflict, fmt.Errorf("%s in %s skipped", Counted(len(res.Conflicts), "file"), dir), todo)
}

// ListFew prints a line for each of the first files of a list. The number of lines is limited, because a sandbox may
// have produced any number of files.
func ListFew(list []patch.Conflict, line func(format string, args ...any), format string) {
	const few = 50
	for _, c := range list[:min(len(list), few)] {
		line(format, c.Path, c.Reason)
	}
	if more := len(list) - few; more > 0 {
		line("and %d more", more)
	}
}

// OpenResults opens the results of a run. id is the run's id or a prefix of it.
func (a *App) OpenResults(ctx context.Context, id string) (string, *runfiles.Archive, error) {
	kept, err := a.RunFiles()
	if err != nil {
		return "", nil, err
	}
	j, err := a.OpenJournal(ctx)
	if err != nil {
		return "", nil, err
	}
	defer j.Close() // opened for reading only
	r, err := FindRun(ctx, j, id)
	if err != nil {
		if made, openErr := kept.Open(id); openErr == nil { // agent runs of earlier versions have no journal
			return id, made, nil
		}
		return "", nil, err
	}
	made, err := kept.Open(r.ID)
	if !errors.Is(err, fs.ErrNotExist) {
		return r.ID, made, err
	}
	switch state, err := RunState(ctx, j, r); {
	case err != nil:
		return "", nil, err
	case state == RunRunning || state == RunInterrupted || state == RunQueued:
		return "", nil, Fail(ExitConflict, fmt.Errorf("run %s is %s; results are collected when it ends", r.ID, state), "")
	}
	if IsDetached(r) {
		return a.openFetched(ctx, r.ID)
	}
	return "", nil, Fail(ExitNotFound,
		fmt.Errorf("run %s has no results: no outputs, and no workspace copied from a directory", r.ID), "")
}

// Changes are a run's changes to the workspace.
type Changes struct {
	Run   string
	Dir   string // directory copied into the workspace; empty if another host executed the run
	Patch *patch.Patch
}

// RunChanges returns the changes of a run by id or id prefix.
func (a *App) RunChanges(ctx context.Context, id string) (c Changes, err error) {
	run, made, err := a.OpenResults(ctx, id)
	if err != nil {
		return c, err
	}
	defer made.Close() // opened for reading only
	c.Run, c.Dir = run, made.Workspace()
	if c.Patch, err = made.Patch(); err == nil && c.Patch == nil {
		err = Fail(ExitNotFound, fmt.Errorf("run %s has no patch: its workspace was not copied from a directory", run),
			"to list its outputs, run `workcell runs files "+run+"`")
	}
	return c, err
}

// Forget deletes a finished run and returns its id.
func (a *App) Forget(ctx context.Context, j runstore.Store, id string) (string, error) {
	r, err := FindRun(ctx, j, id)
	if err != nil {
		return "", err
	}
	kept, err := a.RunFiles()
	if err != nil {
		return "", err
	}
	if r.Finished.IsZero() {
		return "", Fail(ExitConflict, fmt.Errorf("run %s has not finished", r.ID),
			"cancel it first: workcell runs cancel "+r.ID)
	}
	if IsDetached(r) {
		if err := a.dropFiles(ctx, r.ID); err != nil {
			return "", err
		}
	}
	return r.ID, errors.Join(kept.Remove(r.ID), j.Delete(ctx, r.ID))
}
