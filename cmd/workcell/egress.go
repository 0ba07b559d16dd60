package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/environment"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/internal/state"
	"github.com/workcell-dev/workcell/session"
)

// egressFlag adds the flags of networks that are not public, and of registries that may be in them.
func (a *app) egressFlag(f *pflag.FlagSet) {
	f.StringArrayVar(&a.EgressAllowPrivate, "egress-allow-private", nil,
		"`CIDR` of a private network that hosts in network.allow may be in (repeatable)")
	f.StringVar(&a.PipIndex, "pip-index", "", "`URL` of the index for pip_packages (default: the image's)")
	f.StringVar(&a.NpmRegistry, "npm-registry", "", "`URL` of the registry for npm_packages (default: the image's)")
}

// grantsDir holds what operators allow running sandboxes.
func grantsDir(dir state.Dir) string { return filepath.Join(string(dir), "egress") }

// egress returns the gateway of this command's sandboxes.
func (a *app) egress(dir state.Dir) (*egress.Gateway, error) {
	o := &egress.Options{Grants: grantsDir(dir), Log: a.logger()}
	for _, text := range a.EgressAllowPrivate {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, usageError(fmt.Errorf("--egress-allow-private %q is not a network", text), "write it as 10.1.2.0/24")
		}
		o.AllowPrivate = append(o.AllowPrivate, p.Masked())
	}
	return egress.New(o)
}

// environments returns what installs packages for this command's sandboxes.
func (a *app) environments(dir state.Dir) (*environment.Builder, error) {
	b, err := environment.New(&environment.Options{Dir: filepath.Join(string(dir), "environments"), PipIndex: a.PipIndex, NpmRegistry: a.NpmRegistry})
	if err != nil {
		return nil, usageError(err, "as in --pip-index https://pypi.example.org/simple")
	}
	return b, nil
}

func newSessionsAllowCmd(a *app) *cobra.Command {
	return a.verb(engineFlags, &cobra.Command{
		Use:   "allow [flags] SANDBOX HOST…",
		Short: "Let a running sandbox reach more hosts",
		Long: `Let a sandbox that was made with network.allow reach more hosts, which are written as there: NAME, *.NAME, NAME:PORT or
registry:NAME. Its next connections go by that, until the process that has the sandbox ends. What network.deny names stays refused.`,
		Example: "  workcell sessions allow mybox files.example.org registry:npm",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withManager(cmd.Context(), stateWanted, func(ctx context.Context, m *session.Manager) error {
				return a.allowHosts(ctx, m, args[0], args[1:])
			}, args[0])
		},
	})
}

func (a *app) allowHosts(ctx context.Context, m *session.Manager, name string, hosts []string) error {
	list, err := m.List(ctx)
	if err != nil {
		return err
	}
	info, err := findSandbox(list, name)
	if err != nil {
		return err
	}
	if info.Egress.IsZero() {
		return usageError(fmt.Errorf("sandbox %s was made without network.allow", info.ID), "only a list that is there can have more")
	}
	dir, err := a.stateDir()
	if err != nil {
		return err
	}
	return egress.Allow(grantsDir(dir), info.ID, hosts...)
}
