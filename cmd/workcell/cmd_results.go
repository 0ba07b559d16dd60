package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/outputs"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session/transfer"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// runFiles returns where what runs made is kept.
func (a *app) runFiles() (runfiles.Dir, error) {
	dir, err := a.stateDir()
	return runfiles.Dir(filepath.Join(string(dir), "runs")), err
}

// snapshots returns where an owner keeps what sandboxes began with that no later process resumes.
func (a *app) snapshots(owner string) (runfiles.Dir, error) {
	dir, err := a.stateDir()
	return runfiles.Dir(filepath.Join(string(dir), "snapshots", owner)), err
}

// dropSnapshots deletes what dead owners kept there.
func (a *app) dropSnapshots(ctx context.Context, j runstore.Store) error {
	all, err := a.snapshots("")
	if err != nil {
		return err
	}
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

// dropBegun deletes what processes left that were killed at the end of their run, or before somebody else ended it.
func dropBegun(ctx context.Context, j runstore.Store, kept runfiles.Dir) error {
	ids, err := kept.Begun()
	errs := []error{err}
	for _, id := range ids {
		if r, err := j.Run(ctx, id); err == nil && !r.Finished.IsZero() {
			errs = append(errs, kept.RemoveBegun(id))
		}
	}
	return errors.Join(errs...)
}

// pruneRuns forgets runs that finished long ago, with what they made, and what dead processes have no more use for.
func (a *app) pruneRuns(ctx context.Context, j runstore.Store) {
	conf, err := a.config()
	if err != nil {
		a.logger().Warn("cannot remove old runs", "error", err)
		return
	}
	old := time.Now().Add(-conf.KeepRuns)
	_, err = j.Prune(ctx, old)
	kept, dirErr := a.runFiles()
	if err = errors.Join(err, dirErr); err == nil {
		err = errors.Join(a.dropSnapshots(ctx, j), dropBegun(ctx, j, kept), kept.Prune(old, func(run string) bool {
			_, err := j.Run(ctx, run)
			return !errors.Is(err, backend.ErrNotFound)
		}))
	}
	if err != nil {
		a.logger().Warn("cannot remove old runs", "error", err)
	}
}

// forgetOldRuns is pruneRuns for who has no journal open.
func (a *app) forgetOldRuns(ctx context.Context) error {
	j, err := a.openJournal(ctx)
	if err != nil {
		return err
	}
	defer j.Close() // what was not deleted goes the next time
	a.pruneRuns(ctx, j)
	return nil
}

// checkHome refuses flags that ask for what a run cannot make. It returns the directory of the outputs without links, and what
// there is.
func (a *app) checkHome(want []string, workspace string) (dir string, before patch.Stamps, err error) {
	switch {
	case a.opts.Apply && workspace == "":
		return "", nil, usageError(errors.New("--apply requires a workspace that is copied from a directory"), "pass --workspace DIR")
	case a.opts.Force && a.opts.Out == "":
		return "", nil, usageError(errors.New("--force requires --out DIR"), "")
	case a.opts.Out == "":
		return "", nil, nil
	case len(want) == 0:
		return "", nil, usageError(errors.New("--out: the file defines no outputs"), `add them, for example outputs: [report.csv, "dist/**"]`)
	}
	if dir, err = withoutLinks(a.opts.Out); err != nil { // a link that replaces the directory during the run is not followed
		return "", nil, usageError(fmt.Errorf("--out: %w", err), "")
	}
	return dir, patch.Stamp(dir, outputs.Globs(want).In(os.DirFS(dir))), nil
}

// withoutLinks returns the path of a directory with its links resolved. The directory need not exist.
func withoutLinks(dir string) (string, error) {
	exact, err := filepath.EvalSymlinks(dir)
	if above := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && above != dir {
		exact, err = withoutLinks(above)
		exact = filepath.Join(exact, filepath.Base(dir))
	}
	return exact, err
}

// homecoming is what a run made, and where it may go.
type homecoming struct {
	transfer.Made
	run       string
	dir       string       // that the patch is for
	before    patch.Stamps // files in --out when the run began
	succeeded bool
}

// bringHome puts what a run made where the flags say, and says how to have the rest.
func (h *host) bringHome(home homecoming) error {
	for _, name := range home.Missing {
		h.p.Line("optional output %s not found", name)
	}
	if h.opts.Apply && !home.succeeded {
		h.p.Line("--apply: changes not applied because the run did not succeed")
	}
	var err error
	switch n := len(home.Outputs); {
	case n == 0:
	case h.opts.Out != "":
		err = h.putOutputs(home.Outputs, h.opts.Out, home.before, h.opts.Force)
	default:
		h.p.Line("%s collected; to list them, run: workcell runs files %s", counted(n, "output"), home.run)
	}
	switch {
	case home.Patch == nil && h.opts.Apply && home.succeeded:
		return errors.Join(err, fail(exitFailed, errors.New("--apply: the run has no patch"), "its steps used separate sandboxes; only a shared sandbox has a patch"))
	case home.Patch == nil:
		return err
	case len(home.Patch.Changes)+len(home.Patch.Omitted) == 0:
		if h.opts.Apply && home.succeeded {
			h.p.Line("nothing to apply: the run changed no files in %s", home.dir)
		}
		return err
	}
	h.p.Line("%s", home.Patch.Stat())
	listFew(home.Patch.Omitted, h.p.Line, "not included in the patch: %s: %s")
	if h.opts.Apply && home.succeeded {
		return errors.Join(err, h.apply(home.Patch, home.dir))
	}
	h.p.Line("to apply the changes to %s, run: workcell runs apply %s", home.dir, home.run)
	return err
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// putOutputs writes outputs into a directory.
func (a *app) putOutputs(made patch.Tree, dir string, before patch.Stamps, force bool) error {
	res, err := made.Write(dir, before, force)
	if len(res.Applied) > 0 {
		a.notice("%s written to %s", counted(len(res.Applied), "file"), dir)
	}
	if err != nil {
		return err
	}
	return a.conflicts(res, dir, "use --force to overwrite files that differ; paths outside the directory are never written")
}

// apply applies a patch to a directory.
func (a *app) apply(p *patch.Patch, dir string) error {
	res, err := p.Apply(dir)
	if n := len(res.Applied) + len(res.Merged); n > 0 {
		a.notice("%s changed in %s", counted(n, "file"), dir)
	}
	for _, name := range res.Merged {
		a.notice("merged with local changes: %s", name)
	}
	if err != nil {
		return err
	}
	return a.conflicts(res, dir, "the files are unchanged; to see the run's changes, run `workcell runs diff RUN`")
}

// conflicts returns the error of files that were left alone, which it lists.
func (a *app) conflicts(res patch.Result, dir, todo string) error {
	if len(res.Conflicts) == 0 {
		return nil
	}
	listFew(res.Conflicts, a.notice, "skipped: %s: %s")
	return fail(exitConflict, fmt.Errorf("%s in %s skipped", counted(len(res.Conflicts), "file"), dir), todo)
}

// listFew writes a line for each of the first files of a list; how many there are may be a sandbox's doing.
func listFew(list []patch.Conflict, line func(format string, args ...any), format string) {
	const few = 50
	for _, c := range list[:min(len(list), few)] {
		line(format, c.Path, c.Reason)
	}
	if more := len(list) - few; more > 0 {
		line("and %d more", more)
	}
}

// openMade opens what a run made, by the run's id or the beginning of it.
func (a *app) openMade(ctx context.Context, id string) (string, *runfiles.Archive, error) {
	kept, err := a.runFiles()
	if err != nil {
		return "", nil, err
	}
	j, err := a.openJournal(ctx)
	if err != nil {
		return "", nil, err
	}
	defer j.Close() // only read from
	r, err := findRun(ctx, j, id)
	if err != nil {
		return "", nil, err
	}
	made, err := kept.Open(r.ID)
	if !errors.Is(err, fs.ErrNotExist) {
		return r.ID, made, err
	}
	switch state, err := runState(ctx, j, r); {
	case err != nil:
		return "", nil, err
	case state == runRunning || state == runInterrupted || state == runQueued:
		return "", nil, fail(exitConflict, fmt.Errorf("run %s is %s; results are collected when it ends", r.ID, state), "")
	}
	if n, err := readNote(r); err == nil && n.Detached {
		return a.openFetched(ctx, r.ID)
	}
	return "", nil, fail(exitNotFound, fmt.Errorf("run %s has no results: no outputs, and no workspace copied from a directory", r.ID), "")
}

// withMade returns what a command runs with what a run made.
func (a *command) withMade(fn func(run string, made *runfiles.Archive, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		run, made, err := a.openMade(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		defer made.Close() // only read from
		return fn(run, made, args[1:])
	}
}

// shownOutput is an output as `runs files` prints it.
type shownOutput struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Mode  string `json:"mode"`
}

func newRunsFilesCmd(a *command) *cobra.Command {
	return a.verb(outputFlags, &cobra.Command{
		Use:     "files RUN [PATH]",
		Short:   "List all outputs of a run, or one PATH",
		Example: "  workcell runs files run_…\n  workcell runs files run_… dist -o json",
		Args:    cobra.RangeArgs(1, 2),
		RunE: a.withMade(func(_ string, made *runfiles.Archive, args []string) error {
			list, err := outputsAt(made, append(args, ".")[0])
			if err != nil && len(args) > 0 {
				return err
			}
			rows := make([]shownOutput, len(list))
			for i, o := range list {
				rows[i] = shownOutput{o.Path, o.Size, o.Mode.String()}
			}
			return printList(a, rows, []string{"PATH", "SIZE", "MODE"}, func(o shownOutput) []string {
				return []string{o.Path, byteSize(o.Bytes), o.Mode}
			})
		}),
	})
}

// outputsAt returns the output at a path, or those below it.
func outputsAt(made *runfiles.Archive, at string) ([]runfiles.Output, error) {
	list := made.Outputs(path.Clean(at))
	if len(list) == 0 {
		return nil, fail(exitNotFound, fmt.Errorf("output %s not found", at), "run `workcell runs files RUN` to list outputs")
	}
	return list, nil
}

func newRunsGetCmd(a *command) *cobra.Command {
	force := false
	cmd := a.verb(0, &cobra.Command{
		Use:   "get RUN PATH [DIR|-]",
		Short: "Copy a run's outputs here or to standard output",
		Long: `Copy an output of a run, a file or directory, to the current directory or to DIR, under its own name.
PATH . means all outputs. Existing files that differ are not overwritten, unless you pass --force.

Use - instead of DIR to write one file to standard output; a terminal gets control characters in escaped form.`,
		Example: "  workcell runs get run_… report.csv\n  workcell runs get run_… dist /srv/site --force\n" +
			"  workcell runs get run_… report.csv - | head\n  workcell runs get run_… . results",
		Args: cobra.RangeArgs(2, 3),
		RunE: a.withMade(func(_ string, made *runfiles.Archive, args []string) error {
			at := path.Clean(args[0])
			list, err := outputsAt(made, at)
			if err != nil {
				return err
			}
			tree, err := made.Read(list)
			if err != nil {
				return err
			}
			dir := append(args[1:], ".")[0]
			if dir != "-" {
				if dir, err = withoutLinks(dir); err != nil {
					return usageError(err, "")
				}
				return a.putOutputs(rooted(tree, at), dir, nil, force)
			}
			file, ok := tree[at]
			if !ok {
				return usageError(fmt.Errorf("%s is a directory", at), "specify a destination directory instead of -")
			}
			_, err = a.contents().Write(file.Content)
			return err
		}),
	})
	cmd.Flags().BoolVar(&force, "force", false, "overwrite existing files that differ")
	return cmd
}

// rooted returns the outputs at a path by their name below the directory that it is in.
func rooted(tree patch.Tree, at string) patch.Tree {
	out := patch.Tree{}
	for name, e := range tree {
		if above := path.Dir(at); at != "." && above != "." {
			name = strings.TrimPrefix(name, above+"/")
		}
		out[name] = e
	}
	return out
}

// patchOf returns the patch of a run.
func patchOf(run string, made *runfiles.Archive) (*patch.Patch, error) {
	p, err := made.Patch()
	if err == nil && p == nil {
		err = fail(exitNotFound, fmt.Errorf("run %s has no patch: its workspace was not copied from a directory", run),
			"to list its outputs, run `workcell runs files "+run+"`")
	}
	return p, err
}

func newRunsDiffCmd(a *command) *cobra.Command {
	return a.verb(0, &cobra.Command{
		Use:     "diff RUN",
		Short:   "Print a run's changes as a patch",
		Example: "  workcell runs diff run_… | git apply",
		Long: `Print the changes of a run to its workspace as a patch in Git format, including binary files, modes, and
links. The workspace must be a copy of a directory. You can apply the patch with git apply.

Files that are not in the patch are listed on standard error. A terminal gets control characters in escaped form.`,
		Args: cobra.ExactArgs(1),
		RunE: a.withMade(func(run string, made *runfiles.Archive, _ []string) error {
			p, err := patchOf(run, made)
			if err != nil {
				return err
			}
			listFew(p.Omitted, a.notice, "not included in the patch: %s: %s")
			if dir := made.Workspace(); dir != "" {
				a.notice("changes to %s", dir)
			}
			return p.Format(a.contents())
		}),
	})
}

func newRunsApplyCmd(a *command) *cobra.Command {
	return a.verb(0, &cobra.Command{
		Use:     "apply RUN [DIR]",
		Short:   "Apply a run's changes to its source directory",
		Example: "  workcell runs apply run_…\n  workcell runs apply run_… ../another-checkout",
		Long: `Apply a run's changes to the directory that its workspace was copied from, or to DIR. If a worker on another
host executed the run, DIR is required.

Text files that have changed since the run started are merged. If both sides changed the same lines, or if a changed
file is not text, the file is skipped and listed, and the exit code is 7. Nothing is written outside the directory,
through links, or below .git. Applying a run twice has no further effect.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: a.withMade(func(run string, made *runfiles.Archive, args []string) error {
			p, err := patchOf(run, made)
			if err != nil {
				return err
			}
			if len(p.Changes) == 0 {
				a.notice("the run made no changes")
				return nil
			}
			dir := made.Workspace()
			if len(args) > 0 {
				if dir, err = filepath.EvalSymlinks(args[0]); err != nil {
					return usageError(err, "")
				}
			}
			if dir == "" {
				return usageError(fmt.Errorf("run %s was executed on another host", run), "specify where to write files: workcell runs apply "+run+" DIR")
			}
			return a.apply(p, dir)
		}),
	})
}

func newRunsRmCmd(a *command) *cobra.Command {
	return a.verb(0, &cobra.Command{
		Use:     "rm RUN…",
		Short:   "Delete finished runs with their outputs and patches",
		Example: "  workcell runs rm run_…",
		Args:    cobra.MinimumNArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			kept, err := a.runFiles()
			if err != nil {
				return err
			}
			for _, id := range args {
				err = errors.Join(err, a.forget(ctx, j, kept, id))
			}
			return err
		}),
	})
}

// forget deletes a run that has finished.
func (a *app) forget(ctx context.Context, j runstore.Store, kept runfiles.Dir, id string) error {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return err
	}
	if r.Finished.IsZero() {
		return fail(exitConflict, fmt.Errorf("run %s has not finished", r.ID), "cancel it first: workcell runs cancel "+r.ID)
	}
	if n, err := readNote(r); err == nil && n.Detached {
		if err := a.dropFiles(ctx, r.ID); err != nil {
			return err
		}
	}
	return errors.Join(kept.Remove(r.ID), j.Delete(ctx, r.ID))
}
