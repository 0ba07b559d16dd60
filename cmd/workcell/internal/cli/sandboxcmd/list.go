package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
)

func newSandboxLsCmd(a *command) *cobra.Command {
	user, all, watch := "", false, false
	cmd := a.Verb(cli.EngineFlags|cli.OutputFlags, &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List sandboxes",
		Long: `List sandboxes. A sandbox is created (being prepared), running (accepts commands), pooled (ready for later
use), stopped (only its files remain), kept (its run has ended), lost, removing, or removed. ENDS shows when a sandbox
ends if it stays idle; it is not idle while a process runs in it. If the process that had the sandbox died, ENDS shows
when cleanup removes it or its kept files. With --all, the list includes sandboxes that were removed in the last hour,
or lost by a run in the last 30 days, and REASON shows why a sandbox is not running.

With --watch, the command prints a line for each sandbox that is added, changed, or removed, until you interrupt it. A
gap line means that events may be missing because the engine was not reachable.`,
		Example: "  workcell sandbox ls\n  workcell sandbox ls --user alice@example.com --all -o json\n" +
			"  workcell sandbox ls --watch",
		Args: cobra.NoArgs,

		SuggestFor: []string{"ps"},
		RunE: a.managed(app.StateWanted, nil, func(ctx context.Context, m *app.Manager, _ []string) error {
			switch {
			case watch && all:
				return app.UsageError(errors.New("--watch and --all cannot be used together"), "remove one of these flags")
			case watch:
				return a.watchSandboxes(ctx, m, user)
			}
			rows, err := m.Sandboxes(ctx, all)
			if err != nil {
				return err
			}
			rows = slices.DeleteFunc(rows, func(s app.SandboxView) bool { return user != "" && s.UserName != user })
			now := time.Now()
			head := []string{"ID", "NAME", "KEY", "STATE", "IMAGE", "NETWORK", "AGE", "ENDS"}
			if all {
				head = append(head, "REASON")
			}
			a.noticeElsewhere(ctx, m)
			return cli.PrintList(a.Command, rows, head, func(s app.SandboxView) []string {
				row := []string{s.ID, s.Name, s.Key, s.State, s.Image, string(s.Network), app.Age(now.Sub(s.Created))}
				return append(row, s.Ends, s.Reason)[:len(head)]
			})
		}),
	})
	cmd.Flags().StringVar(&user, "user", "", "`NAME`: list only sandboxes of this end user (workcell run --user)")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include removed and lost sandboxes (see above)")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false,
		"print changes until interrupted; with -o json, one object per change")
	return cmd
}

// eventOutput is an event of `ls --watch`.
type eventOutput struct {
	Event   admin.EventType  `json:"event"`
	Time    time.Time        `json:"time"`
	Since   time.Time        `json:"since,omitzero"` // for a gap: time of the latest contact with the engine
	Sandbox *app.SandboxView `json:"sandbox,omitempty"`
}

// watchSandboxes prints sandbox events until the command is stopped.
func (a *command) watchSandboxes(ctx context.Context, m *app.Manager, user string) error {
	for e, err := range admin.Watch(ctx, m.Manager, admin.WatchFilter{User: user}) {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		out := eventOutput{Event: e.Type, Time: e.Time.UTC(), Since: e.Since.UTC()}
		line := "since " + e.Since.Format(time.TimeOnly)
		if e.Type != admin.EventGap {
			left, _ := admin.Abandoned(ctx, m.Manager) // as in ls
			row := app.ViewSandbox(e.Info, left...)
			if out.Sandbox = &row; e.Info.State == session.StateClosed && e.Type == admin.EventRemoved {
				row.State = string(app.StateRemoved)
			}
			line = fmt.Sprintf("%s  %-8s  %s  %s  %s", row.ID, row.State, row.Image, row.Key, row.Reason)
		}
		line = fmt.Sprintf("%s  %-8s  %s", e.Time.Format(time.TimeOnly), e.Type, strings.TrimSpace(line))
		if err := a.PrintLines(out, line); err != nil {
			return err
		}
	}
	return nil
}

// noticeElsewhere prints how many recorded sandboxes other engines have.
func (a *command) noticeElsewhere(ctx context.Context, m *app.Manager) {
	if m.Records == nil || a.Options.Backend != "" {
		return
	}
	list, _ := app.Recorded(ctx, m.Records)
	others := map[string]int{}
	for _, info := range list {
		if info.EngineID != m.Engine {
			others[info.Backend]++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		a.Notice("not listed: %s; use --backend %s", app.Counted(others[name], name+" sandbox"), name)
	}
}

func newSandboxShowCmd(a *command) *cobra.Command {
	return a.Verb(cli.EngineFlags|cli.OutputFlags, &cobra.Command{
		Use:     "show SANDBOX",
		Aliases: []string{"inspect"},
		Short:   "Show details of a sandbox",
		Long: `Show details of a sandbox, such as its state, user, image, backend, and isolation; -o json includes its
limits and settings. POLICY is the SHA-256 digest of the settings; command results show only the first few digits. The
output also shows why a sandbox is not running. You can show the same sandboxes as with sandbox ls --all.`,
		Example: "  workcell sandbox show mybox\n  workcell sandbox show sbx_… -o json",
		Args:    cobra.ExactArgs(1),
		RunE:    a.managed(app.StateWanted, first, a.showSandbox),
	})
}

// showSandbox prints the existing sandbox with this name, or else the latest removed sandbox with this name.
func (a *command) showSandbox(ctx context.Context, m *app.Manager, args []string) error {
	list, err := m.Infos(ctx, true)
	if err != nil {
		return err
	}
	var there, gone []session.Info
	for _, info := range list {
		if info.State == app.StateRemoved || info.State == session.StateLost {
			gone = append(gone, info)
		} else {
			there = append(there, info)
		}
	}
	found, err := app.FindSandbox(there, args[0])
	if before := app.NamedSandboxes(gone, args[0]); errors.Is(err, backend.ErrNotFound) && len(before) > 0 {
		found, err = before[len(before)-1], nil
	}
	if err != nil {
		return err
	}
	left, _ := admin.Abandoned(ctx, m.Manager) // as in ls
	row := app.ViewSandbox(found, left...)
	return a.Print(shownSandbox{row, found.Settings()}, func(w io.Writer) error {
		return cli.WriteFacts(w, "id", row.ID, "name", row.Name, "user", row.UserName, "key", row.Key, "state", row.State,
			"ends", row.Ends, "reason", row.Reason, "image", row.Image, "runs as", row.User,
			"network", string(row.Network), "backend", row.Backend, "isolation", string(row.Isolation),
			"policy", row.Policy, "engine id", row.EngineID, "created", row.Created.Local().Format(time.DateTime))
	})
}

// shownSandbox is what `sandbox show -o json` prints. Policy is the digest of Settings.
type shownSandbox struct {
	app.SandboxView
	Settings sandbox.Settings `json:"settings"`
}
