package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

func newSessionsLsCmd(a *app) *cobra.Command {
	var (
		engine engineFlags
		out    outputFlag
	)
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the sandboxes there are",
		Args:    cobra.NoArgs,

		SuggestFor: []string{"ps"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withManager(cmd.Context(), engine, imageFlags{}, stateWanted, func(ctx context.Context, m *session.Manager) error {
				list, err := m.List(ctx)
				if err != nil {
					return err
				}
				rows := make([]sandboxOutput, len(list))
				for i, info := range list {
					rows[i] = sandboxRow(info)
				}
				return out.write(a.stdout, rows, func(w io.Writer) error { return sandboxTable(w, rows, time.Now()) })
			})
		},
	}
	engine.addTo(cmd)
	out.addTo(cmd)
	return cmd
}

// sandboxOutput is a sandbox in the output of commands.
type sandboxOutput struct {
	ID      string              `json:"id"`
	Name    string              `json:"name,omitempty"` // of one that `sessions open` made; random unless --name said it
	Key     string              `json:"key"`
	Run     string              `json:"run,omitempty"`
	State   string              `json:"state"` // created, running, stopped, kept, removing or lost
	Image   string              `json:"image"`
	User    string              `json:"user"`
	Network backend.NetworkMode `json:"network"`
	Limits  backend.Limits      `json:"limits"`
	// Workspace is what holds the workspace to its limit.
	Workspace backend.Enforcement `json:"workspace,omitempty"`
	// RootBytes may be written outside of the workspace where the root can be written to, which RootEnforcement holds.
	RootBytes       int64               `json:"root_bytes,omitempty"`
	RootEnforcement backend.Enforcement `json:"root_enforcement,omitempty"`
	Created         time.Time           `json:"created"`
	Backend         string              `json:"backend"`
	EngineID        string              `json:"engine_id"`

	IdlePolicy session.IdlePolicy `json:"idle_policy,omitempty"`
}

func sandboxRow(i session.Info) sandboxOutput {
	name := ""
	if i.Key.Namespace == session.NamespaceUser {
		name = i.Key.ID
	}
	return sandboxOutput{
		Name: name,
		ID:   i.ID, Key: i.Key.String(), Run: i.Run, State: stateWord(i.State), Image: i.Image, User: i.User, Network: i.Network,
		Limits: i.Limits, Workspace: i.Workspace, RootBytes: i.RootBytes, RootEnforcement: i.RootEnforcement, Created: i.Created,
		Backend: i.Backend, EngineID: i.EngineID,
		IdlePolicy: i.IdlePolicy,
	}
}

// stateWord returns what a sandbox is, whether somebody has it or not.
func stateWord(s session.State) string {
	switch s {
	case session.StateReady:
		return "running"
	case session.StateClosed:
		return "removing"
	}
	return string(s)
}

func sandboxTable(w io.Writer, list []sandboxOutput, now time.Time) error {
	rows := make([][]string, len(list))
	for i, s := range list {
		rows[i] = []string{s.ID, s.Name, s.Key, s.State, s.Image, string(s.Network), age(now.Sub(s.Created))}
	}
	return writeTable(w, []string{"ID", "NAME", "KEY", "STATE", "IMAGE", "NETWORK", "AGE"}, rows)
}

// age writes how long ago something was in its largest unit.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return d.Truncate(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/(time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/(time.Hour))
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}
