package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/environment"
	"github.com/workcell-dev/workcell/gateway/egress"
)

// egressFlag adds the flags of networks that are not public, and of registries that may be in them.
func (a *command) egressFlag(f *pflag.FlagSet) {
	f.StringArrayVar(&a.Options.EgressAllowPrivate, "egress-allow-private", nil,
		"let hosts in network.allow use private addresses in `CIDR`, for example 10.0.0.0/8 (repeatable)")
	f.StringVar(&a.Options.PipIndex, "pip-index", "", "`URL` of the index for pip_packages (default: the image's)")
	f.StringVar(&a.Options.NpmRegistry, "npm-registry", "", "`URL` of the registry for npm_packages (default: the image's)")
}

// grantsDir holds what operators allow running sandboxes.
func grantsDir(dir state.Dir) string { return filepath.Join(string(dir), "egress") }

// egress returns the gateway of this command's sandboxes.
func (a *app) egress(dir state.Dir) (*egress.Gateway, error) {
	o := &egress.Options{Grants: grantsDir(dir), Log: a.logger()}
	for _, text := range a.opts.EgressAllowPrivate {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, usageError(fmt.Errorf("invalid value %q for --egress-allow-private", text), "for example 10.1.2.0/24")
		}
		o.AllowPrivate = append(o.AllowPrivate, p.Masked())
	}
	return egress.New(o)
}

// environments returns what installs packages for this command's sandboxes.
func (a *app) environments(dir state.Dir) (*environment.Builder, error) {
	b, err := environment.New(&environment.Options{Dir: filepath.Join(string(dir), "environments"), PipIndex: a.opts.PipIndex, NpmRegistry: a.opts.NpmRegistry})
	if err != nil {
		return nil, usageError(err, "for example --pip-index https://pypi.example.org/simple")
	}
	return b, nil
}

func newSessionsAllowCmd(a *command) *cobra.Command {
	return a.verb(engineFlags, &cobra.Command{
		Use:   "allow [flags] SANDBOX HOST…",
		Short: "Allow a sandbox to reach more hosts",
		Long: `Allow a sandbox that was created with network.allow to reach more hosts. HOST has the same forms as in
network.allow: NAME, *.NAME, NAME:PORT, or registry:NAME. New connections can use the hosts until the process that
owns the sandbox exits. Hosts in network.deny are still refused.`,
		Example: "  workcell sessions allow mybox files.example.org registry:npm",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			use := managerUse{state: stateWanted, sandboxes: args[:1]}
			return a.withManager(cmd.Context(), use, func(ctx context.Context, m *manager) error {
				return a.allowHosts(ctx, m, args[0], args[1:])
			})
		},
	})
}

func (a *command) allowHosts(ctx context.Context, m *manager, name string, hosts []string) error {
	list, err := m.List(ctx)
	if err != nil {
		return err
	}
	info, err := findSandbox(list, name)
	if err != nil {
		return err
	}
	if info.Egress.IsZero() {
		return usageError(fmt.Errorf("sandbox %s was created without network.allow", info.ID), "hosts can only be added to an existing allowlist")
	}
	dir, err := a.stateDir()
	if err != nil {
		return err
	}
	return egress.Allow(grantsDir(dir), info.ID, hosts...)
}
