package runcmd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// withMade returns the RunE of a command for the results of a run.
func (a *command) withMade(fn func(made *runfiles.Archive, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		_, made, err := a.OpenResults(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		defer made.Close() // opened for reading only
		return fn(made, args[1:])
	}
}

// shownOutput is an output in the list of `runs files`.
type shownOutput struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Mode  string `json:"mode"`
}

func newRunsFilesCmd(a *command) *cobra.Command {
	return a.Verb(cli.OutputFlags, &cobra.Command{
		Use:     "files RUN [PATH]",
		Short:   "List a run's outputs, or outputs in PATH",
		Example: "  workcell runs files run_…\n  workcell runs files run_… dist -o json",
		Args:    cobra.RangeArgs(1, 2),
		RunE: a.withMade(func(made *runfiles.Archive, args []string) error {
			list, err := outputsAt(made, append(args, ".")[0])
			if err != nil && len(args) > 0 {
				return err
			}
			rows := make([]shownOutput, len(list))
			for i, o := range list {
				rows[i] = shownOutput{o.Path, o.Size, o.Mode.String()}
			}
			return cli.PrintList(a.Command, rows, []string{"PATH", "SIZE", "MODE"}, func(o shownOutput) []string {
				return []string{o.Path, cli.ByteSize(o.Bytes), o.Mode}
			})
		}),
	})
}

// outputsAt returns the output at a path, or all outputs below it.
func outputsAt(made *runfiles.Archive, at string) ([]runfiles.Output, error) {
	list := made.Outputs(path.Clean(at))
	if len(list) == 0 {
		return nil, app.Fail(app.ExitNotFound, fmt.Errorf("output %s not found", at),
			"run `workcell runs files RUN` to list outputs")
	}
	return list, nil
}

func newRunsGetCmd(a *command) *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use:   "get RUN PATH [DIR|-]",
		Short: "Copy outputs to a directory or standard output",
		Long: `Copy an output file or directory of a run to the current directory or to DIR. The copy has the same name.
To copy all outputs, use . as PATH. Existing files that differ are not overwritten unless you pass --force.

Use - instead of DIR to write one file to standard output. On a terminal, control characters are escaped. Output to a
pipe or file is written unchanged.`,
		Example: "  workcell runs get run_… report.csv\n  workcell runs get run_… dist /srv/site --force\n" +
			"  workcell runs get run_… report.csv - | head\n  workcell runs get run_… . results",
		Args: cobra.RangeArgs(2, 3),
		RunE: a.withMade(func(made *runfiles.Archive, args []string) error {
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
				if dir, err = app.WithoutLinks(dir); err != nil {
					return app.UsageError(err, "")
				}
				return a.PutOutputs(rooted(tree, at), dir, nil, force, "use --force to overwrite files that differ")
			}
			file, ok := tree[at]
			if !ok {
				return app.UsageError(fmt.Errorf("%s is a directory", at), "specify a destination directory instead of -")
			}
			_, err = a.Contents().Write(file.Content)
			return err
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "overwrite existing files that differ")
	return cmd
}

// rooted returns the outputs at a path, with names relative to the parent directory.
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

// notInPatch is the format of the lines for changed files that are not in a patch.
const notInPatch = "not included in the patch: %s: %s"

func newRunsDiffCmd(a *command) *cobra.Command {
	return &cobra.Command{
		Use:     "diff RUN [PATH]",
		Short:   "Print a run's changes as a patch",
		Example: "  workcell runs diff run_… | git apply\n  workcell runs diff run_… src/main.go",
		Long: `Print the changes of a run to its workspace as a patch in Git format, including binary files, modes, and
links. The workspace must be a copy of a directory. You can apply the patch with git apply. With PATH, the command
prints only the changes to that file or directory.

Files that are not in the patch are listed on standard error. On a terminal, control characters are escaped. Output
to a pipe or file is written unchanged.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			made, err := a.RunChanges(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			p, at := made.Patch, path.Clean(append(args[1:], ".")[0])
			outside := func(name string) bool { return at != "." && name != at && !strings.HasPrefix(name, at+"/") }
			p.Changes = slices.DeleteFunc(p.Changes, func(c patch.Change) bool { return outside(c.Path) })
			p.Omitted = slices.DeleteFunc(p.Omitted, func(c patch.Conflict) bool { return outside(c.Path) })
			if len(p.Changes)+len(p.Omitted) == 0 && at != "." {
				return app.Fail(app.ExitNotFound, fmt.Errorf("the run has no changes of %s", at),
					"to see all changes, run `workcell runs diff "+made.Run+"`")
			}
			app.ListFew(p.Omitted, a.Notice, notInPatch)
			if made.Dir != "" {
				a.Notice("changes to %s", made.Dir)
			}
			return p.Format(a.Contents())
		},
	}
}

func newRunsApplyCmd(a *command) *cobra.Command {
	mark, dry := false, false
	cmd := &cobra.Command{
		Use:   "apply RUN [DIR]",
		Short: "Apply a run's changes to its source directory",
		Example: "  workcell runs apply run_… --dry-run\n  workcell runs apply run_…\n" +
			"  workcell runs apply run_… ../another-checkout",
		Long: `Apply a run's changes to the directory that its workspace was copied from, or to DIR. If a worker on another
host executed the run, DIR is required.

Text files that have changed since the run started are merged. If you and the run changed the same lines, or if a
changed file is not text, the file is skipped and listed, and the exit code is 7. With --conflict-markers, the command
writes both versions of the lines into a text file instead. Nothing is written outside the directory, through links, or
in .git. Applying a run twice has no further effect.

With --dry-run, the command writes nothing and prints what it would do with each file: write it as the run made it
(apply), merge it with your changes, or skip it. The exit code is 7 if it would skip a file.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			made, err := a.RunChanges(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case dry && mark:
				return app.UsageError(errors.New("--dry-run and --conflict-markers cannot be used together"),
					"remove one of these flags")
			case len(made.Patch.Changes)+len(made.Patch.Omitted) == 0:
				a.Notice("the run made no changes")
			}
			app.ListFew(made.Patch.Omitted, a.Notice, notInPatch)
			if len(made.Patch.Changes) == 0 {
				return nil
			}
			dir := made.Dir
			if len(args) > 1 {
				if args[1] == "" {
					return app.UsageError(errors.New("DIR is empty"), "")
				}
				if dir, err = filepath.EvalSymlinks(args[1]); err != nil {
					return app.UsageError(err, "")
				}
			}
			switch {
			case dir == "":
				return app.UsageError(fmt.Errorf("run %s was executed on another host", made.Run),
					"specify where to write files: workcell runs apply "+made.Run+" DIR")
			case dry:
				return a.checkPatch(made.Patch, dir)
			}
			return a.Apply(made.Run, made.Patch, dir, mark)
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would be done with each file, and write nothing")
	cmd.Flags().BoolVar(&mark, "conflict-markers", false, "write both versions of lines that you and the run changed")
	return cmd
}

// checkPatch prints what Apply would do with each file. It returns an error if Apply would skip a file.
func (a *command) checkPatch(p *patch.Patch, dir string) error {
	res, err := p.Check(dir)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, group := range []struct {
		does  string
		paths []string
	}{{"apply", res.Applied}, {"merge", res.Merged}, {"unchanged", res.Unchanged}} {
		for _, name := range group.paths {
			rows = append(rows, []string{name, group.does, ""})
		}
	}
	for _, c := range res.Conflicts {
		rows = append(rows, []string{c.Path, "skip", c.Reason})
	}
	if err := cli.WriteTable(a.Stdout, []string{"PATH", "ACTION", "REASON"}, rows); err != nil {
		return err
	}
	if n := len(res.Conflicts); n > 0 {
		return app.Fail(app.ExitConflict, fmt.Errorf("%s in %s would be skipped", app.Counted(n, "file"), dir), "")
	}
	return nil
}

func newRunsRmCmd(a *command) *cobra.Command {
	return &cobra.Command{
		Use:     "rm RUN…",
		Short:   "Delete finished runs with their outputs and patches",
		Example: "  workcell runs rm run_…",
		Args:    cobra.MinimumNArgs(1),
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) (err error) {
			removed := cli.Printed[cli.Removed]{Command: a.Command}
			for _, id := range args {
				full, failed := a.Forget(ctx, j, id)
				if failed == nil {
					removed.Add(full, cli.Removed{ID: full})
				}
				err = errors.Join(err, failed)
			}
			return errors.Join(err, removed.End())
		}),
	}
}
