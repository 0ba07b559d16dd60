package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/cache"
	"github.com/workcell-dev/workcell/session/transfer"
)

// caches returns the caches of this machine, those that are configured among them.
func (a *app) caches() (*cache.Store, error) {
	conf, err := a.config()
	if err != nil {
		return nil, err
	}
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	var own []cache.Volume
	configured := conf.Caches()
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		own = append(own, cache.Own(name, configured[name]))
	}
	store, err := cache.Open(filepath.Join(string(dir), "caches"), own...)
	if err != nil {
		return nil, fail(exitInvalid, err, "see caches in the configuration; `workcell config show --origin` says where it is")
	}
	return store, nil
}

// checkCaches refuses names that no cache has.
func (a *app) checkCaches(names []string) error {
	store, err := a.caches()
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := store.Info(name); errors.Is(err, backend.ErrNotFound) {
			return usageError(err, "`workcell cache ls` shows them")
		}
	}
	return nil
}

func newCacheCmd(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use:     "cache",
		Aliases: []string{"caches"},
		Short:   "Fill, list and empty the caches that sandboxes read",
		Long: `Fill, list and empty the caches that sandboxes read: what they would download again and again. A sandbox that asks for one,
by cache: [pip] in the agent's file or by --cache pip, reads it and cannot write to it; only cache fill does.`,
	}, newCacheLsCmd(a), newCacheFillCmd(a), newCacheRmCmd(a))
}

func newCacheLsCmd(a *app) *cobra.Command {
	return a.verb(outputFlags, &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the caches and what they hold",
		Example: "  workcell cache ls -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			store, err := a.caches()
			if err != nil {
				return err
			}
			list, err := store.List()
			if err != nil {
				return err
			}
			now := time.Now()
			return printList(a, list, []string{"NAME", "FILES", "SIZE", "LIMIT", "FILLED", "DIRECTORY"}, func(in cache.Info) []string {
				filled := "never"
				if !in.Filled.IsZero() {
					filled = age(now.Sub(in.Filled)) + " ago"
				}
				return []string{in.Name, fmt.Sprint(in.Files), byteSize(in.Bytes), byteSize(in.MaxBytes), filled, in.Dir}
			})
		},
	})
}

type cacheFillOptions struct {
	cache.FillOptions
	from   string
	hosts  []string
	env    []string
	sizeMB int64
}

func newCacheFillCmd(a *app) *cobra.Command {
	o := &cacheFillOptions{}
	cmd := a.verb(engineFlags|imageFlags, &cobra.Command{
		Use:   "fill NAME -- COMMAND [ARG…]",
		Short: "Run a command in a sandbox and keep what it downloads",
		Long: `Run a command in a sandbox of its own and keep what it downloads, beside what the cache has. It runs with variables by which
pip, npm or go put it into the cache; others find the directory in CACHE_DIR. Sandboxes that open from then on read it; when
the command fails, or leaves more than the cache may have, nothing changes.

Whatever the command leaves there is what all sandboxes get that ask for the cache: have it run nothing that you would not run.`,
		Example: "  workcell cache fill pip -- pip download pandas requests\n  workcell cache fill npm --from . -- npm ci\n" +
			"  workcell cache fill go --image golang:1 --from . -- go mod download",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 || cmd.ArgsLenAtDash() > 1 {
				return usageError(errors.New("name a cache and a command"), "workcell cache fill NAME -- COMMAND")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Name, o.Argv = args[0], args[1:]
			return o.run(cmd.Context(), a)
		},
	})
	f := cmd.Flags()
	f.StringVar(&o.Request.Image, "image", "", "image (default that of Python for pip, of Node for npm, of bash for others)")
	f.StringVar(&o.from, "from", "", "`DIR` of this machine whose files the command finds in its work directory")
	f.StringArrayVar(&o.hosts, "network-allow", nil, "`HOST` that the command reaches, in place of the registry of NAME: NAME, *.NAME, NAME:PORT, registry:NAME; may be repeated")
	f.StringArrayVarP(&o.env, "env", "e", nil, "NAME=VALUE for the command, or NAME to pass this process's value on; may be repeated")
	f.Int64Var(&o.sizeMB, "size-mb", 0, fmt.Sprintf("most that the cache may have, in MiB (default %d)", cache.DefaultMaxBytes>>20))
	f.BoolVar(&o.Fresh, "fresh", false, "forget what the cache had")
	return cmd
}

// runtimeOf returns the runtime whose image has the program that a cache is for.
func runtimeOf(name string) frontmatter.Runtime {
	switch name {
	case "pip":
		return frontmatter.RuntimePython
	case "npm":
		return frontmatter.RuntimeNode
	}
	return frontmatter.RuntimeBash
}

func (o *cacheFillOptions) run(ctx context.Context, a *app) error {
	if err := a.checkCaches([]string{o.Name}); err != nil {
		return err
	}
	if o.sizeMB < 0 || o.sizeMB > 1<<20 {
		return usageError(fmt.Errorf("--size-mb %d is out of range", o.sizeMB), "from 1 to 1048576")
	}
	variables, err := parseEnv(a.env, o.env)
	if err != nil {
		return err
	}
	if o.Request.Image == "" {
		wish.DefaultImage(&o.Request, runtimeOf(o.Name))
	}
	p := newProgress(a.stderr)
	defer p.Close()
	o.Request.Env, o.Request.Egress.Allow, o.Request.OCIRuntime, o.Request.OnPull = variables, o.hosts, a.ociRuntime, p.Pull
	o.MaxBytes, o.Stdout, o.Stderr = o.sizeMB<<20, a.stderr, a.stderr
	if o.from != "" {
		o.Request.Prepare = func(ctx context.Context, s *session.Session) error {
			return transfer.In(ctx, s, o.from+"/.", nil, o.from, ".", transfer.Observer{
				Progress: func(transfer.Event) {},
				Failed:   func(path string, reason error) { p.Line("workcell: %s: %s", path, reason) },
			})
		}
	}
	return a.withManager(ctx, stateNeeded, func(ctx context.Context, m *session.Manager) error {
		store, err := a.caches()
		if err != nil {
			return err
		}
		in, err := store.Fill(ctx, m, o.FillOptions)
		if err != nil {
			return err
		}
		a.notice("the cache %s has %d files, %s", in.Name, in.Files, byteSize(in.Bytes))
		return nil
	})
}

func newCacheRmCmd(a *app) *cobra.Command {
	return a.verb(0, &cobra.Command{
		Use:     "rm NAME…",
		Short:   "Empty caches",
		Long:    "Empty caches. Sandboxes that have one go on with it; sessions gc removes it from the disk a day later.",
		Example: "  workcell cache rm pip npm",
		Aliases: []string{"remove", "clear"},
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := a.checkCaches(args); err != nil {
				return err
			}
			store, err := a.caches()
			for _, name := range args {
				if err == nil {
					err = store.Remove(name)
				}
			}
			return err
		},
	})
}
