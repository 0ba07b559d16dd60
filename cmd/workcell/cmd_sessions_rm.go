package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

func newSessionsRmCmd(a *app) *cobra.Command {
	var (
		engine       engineFlags
		all, keep    bool
		ignoreAbsent bool
		files        []string
		out          outputFlag
	)
	cmd := &cobra.Command{
		Use:     "rm SANDBOX… | --all | --file PATH SANDBOX",
		Aliases: []string{"remove"},

		SuggestFor: []string{"delete", "stop", "close"},
		Short:      "Remove sandboxes and what is in them",
		Long: `Remove sandboxes and what is in them. A sandbox is named by its id, its key, its name or its run; the
beginning of an id will do when no other begins so.

Prints the id of each sandbox that was removed.

With --keep-workspace the files in /workspace stay for 30 days: sessions ls lists the sandbox as stopped, opening its name
makes it anew with its files, and removing it once more without the flag deletes them. Those of a run go with the run.

With --file the sandbox stays, and a file or directory of its workspace is deleted, also when no command can run because
the workspace is full.`,
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("name the sandboxes to remove, or pass --all")
			}
			if len(files) > 0 && (len(args) != 1 || keep) {
				return errors.New("--file takes one sandbox, which stays")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withManager(cmd.Context(), engine, imageFlags{}, stateWanted, func(ctx context.Context, m *session.Manager) error {
				if len(files) > 0 {
					return removeFiles(ctx, m, args[0], files, ignoreAbsent)
				}
				ids, err := sandboxesToRemove(ctx, m, args, all, ignoreAbsent)
				removed := []removedSandbox{}
				for _, id := range ids {
					if e := m.Remove(ctx, id, !keep); e != nil && !(ignoreAbsent && errors.Is(e, backend.ErrNotFound)) {
						err = errors.Join(err, e)
						continue
					}
					if removed = append(removed, removedSandbox{id}); out == "" || out == outputTable {
						fmt.Fprintln(a.stdout, id) // as soon as it is true
					}
				}
				return errors.Join(err, out.write(a.stdout, removed, func(io.Writer) error { return nil }))
			})
		},
	}
	engine.addTo(cmd)
	out.addTo(cmd)
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "every sandbox of this user")
	f.BoolVar(&keep, "keep-workspace", false, "leave the workspaces for sessions open --name to have again")
	f.StringArrayVar(&files, "file", nil, "delete this file or directory of the sandbox's workspace, not the sandbox; may be repeated")
	f.BoolVarP(&ignoreAbsent, "force", "f", false, "a sandbox or file that is not there is no error")
	return cmd
}

// removeFiles deletes files and directories of a sandbox. One that cannot be deleted does not keep the others.
func removeFiles(ctx context.Context, m *session.Manager, name string, files []string, ignoreAbsent bool) error {
	s, err := connect(ctx, m, name)
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range files {
		_, err := s.RemoveFile(ctx, file, true)
		switch {
		case err == nil, ignoreAbsent && errors.Is(err, backend.ErrNotFound):
		case errors.Is(err, backend.ErrNotFound): // the file, not the sandbox
			errs = append(errs, fail(exitFailed, fmt.Errorf("there is no file %s in the sandbox", file),
				fmt.Sprintf("`workcell sessions exec %s -- ls -a` shows what there is", name)))
		default:
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
	}
	return errors.Join(errs...)
}

// removedSandbox is a sandbox in the output of `sessions rm`.
type removedSandbox struct {
	ID string `json:"id"`
}

// sandboxesToRemove resolves names; an unknown one does not keep the others from being removed. A run's id names all of
// its sandboxes.
func sandboxesToRemove(ctx context.Context, m *session.Manager, names []string, all, ignoreAbsent bool) ([]string, error) {
	list, err := m.List(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	seen := map[string]bool{}
	add := func(s session.Info) {
		if !seen[s.ID] {
			seen[s.ID] = true
			ids = append(ids, s.ID)
		}
	}
	var errs []error
	for _, name := range names {
		if found := namedSandboxes(list, name); oneRun(found) {
			for _, s := range found {
				add(s)
			}
			continue
		}
		s, err := findSandbox(list, name)
		switch {
		case err == nil:
			add(s)
		case !ignoreAbsent || !errors.Is(err, backend.ErrNotFound):
			errs = append(errs, err)
		}
	}
	if all {
		for _, s := range list {
			add(s)
		}
	}
	return ids, errors.Join(errs...)
}

// oneRun reports whether sandboxes are all of the same run.
func oneRun(list []session.Info) bool {
	for _, s := range list {
		if s.Run == "" || s.Run != list[0].Run {
			return false
		}
	}
	return len(list) > 0
}
