package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/session"
)

func newSandboxRmCmd(a *command) *cobra.Command {
	var all, keep, force bool
	cmd := a.Verb(cli.EngineFlags|cli.OutputFlags, &cobra.Command{
		Use: "rm SANDBOX… | SANDBOX:PATH… | --all",
		Example: "  workcell sandbox rm mybox sbx_…\n  workcell sandbox rm --keep-workspace mybox\n" +
			"  workcell sandbox rm mybox:old.log",
		Aliases: []string{"remove"},

		SuggestFor: []string{"delete", "stop", "close"},
		Short:      "Remove sandboxes and their files",
		Long: `Remove sandboxes with their files and processes, and print their IDs. If SANDBOX is the ID of a run, all its
sandboxes are removed.

With --keep-workspace, the files in /workspace are kept for 30 days: sandbox ls lists the sandbox as stopped, and
opening its name rebuilds it with its files. To delete the files, remove the sandbox again without this flag. The
workspaces of a run are deleted with the run.

SANDBOX:PATH removes a file or directory in the sandbox, but not the sandbox itself. This works even if the workspace
is full and commands cannot run.`,
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("specify sandboxes to remove, or use --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			mayName := func(arg string) []string { return append([]string{arg}, sandboxNames(arg)...) }
			groups, err := a.ByBackend(cmd.Context(), app.StateWanted, args, mayName)
			errs := []error{err}
			removed := cli.Printed[cli.Removed]{Command: a.Command}
			for _, names := range groups {
				use := app.Use{State: app.StateWanted}
				for _, arg := range names {
					use.Sandboxes = append(use.Sandboxes, mayName(arg)...)
				}
				errs = append(errs, a.WithManager(cmd.Context(), use, func(ctx context.Context, m *app.Manager) error {
					ids, files, err := toRemove(ctx, m, names, all, force)
					errs := []error{err}
					for _, f := range files {
						errs = append(errs, f.remove(ctx, m, force))
					}
					for _, id := range ids {
						if err := m.Remove(ctx, id, !keep); err == nil || force && errors.Is(err, backend.ErrNotFound) {
							removed.Add(id, cli.Removed{ID: id})
						} else {
							errs = append(errs, err)
						}
					}
					return errors.Join(errs...)
				}))
			}
			return errors.Join(append(errs, removed.End())...)
		},
	})
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "remove all your sandboxes on the backend")
	f.BoolVar(&keep, "keep-workspace", false, "keep the workspace files for sandbox open --name")
	f.BoolVarP(&force, "force", "f", false, "ignore sandboxes and files that do not exist")
	return cmd
}

// sandboxFile is a SANDBOX:PATH argument of rm.
type sandboxFile struct{ id, sandbox, path string }

func (f sandboxFile) remove(ctx context.Context, m *app.Manager, ignoreAbsent bool) error {
	if f.path == "" {
		return app.UsageError(fmt.Errorf("%s: path required", f.sandbox), "to remove the sandbox, omit the colon")
	}
	s, err := m.Connect(ctx, f.id)
	if err != nil {
		return err
	}
	_, err = s.RemoveFile(ctx, f.path, true)
	switch {
	case err == nil, ignoreAbsent && errors.Is(err, backend.ErrNotFound):
		return nil
	case errors.Is(err, backend.ErrNotFound): // the file is missing, but the sandbox exists
		return app.Fail(app.ExitFailed, fmt.Errorf("file %s not found in the sandbox", f.path),
			fmt.Sprintf("to list the files, run `workcell sandbox exec %s -- ls -a`", f.sandbox))
	}
	return fmt.Errorf("%s: %w", f.path, err)
}

// toRemove resolves the arguments of rm. It resolves all arguments before it reports unknown ones. A run's id selects
// all sandboxes of the run.
func toRemove(
	ctx context.Context, m *app.Manager, args []string, all, ignoreAbsent bool,
) (ids []string, files []sandboxFile, err error) {
	list, err := m.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	add := func(list ...session.Info) {
		for _, s := range list {
			if !slices.Contains(ids, s.ID) {
				ids = append(ids, s.ID)
			}
		}
	}
	var errs []error
	for _, arg := range args {
		if found := app.NamedSandboxes(list, arg); oneRun(found) {
			add(found...)
			continue
		}
		s, err := app.FindSandbox(list, arg) // keys contain colons too
		isFile, path := inSandbox(arg) && errors.Is(err, backend.ErrNotFound), ""
		if isFile {
			s, path, err = splitSandboxPath(list, arg)
		}
		switch {
		case err == nil && isFile:
			files = append(files, sandboxFile{s.ID, strings.TrimSuffix(arg, ":"+path), path})
		case err == nil:
			add(s)
		case !ignoreAbsent || !errors.Is(err, backend.ErrNotFound):
			errs = append(errs, err)
		}
	}
	if all {
		add(list...)
	}
	return ids, files, errors.Join(errs...)
}

// oneRun reports whether all sandboxes belong to the same run.
func oneRun(list []session.Info) bool {
	return len(list) > 0 && list[0].Run != "" &&
		!slices.ContainsFunc(list, func(s session.Info) bool { return s.Run != list[0].Run })
}
