package admincmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/cache"
	"github.com/workcell-dev/workcell/session/transfer"
)

func newCacheCmd(a *command) *cobra.Command {
	return cli.Subcommands(&cobra.Command{
		Use:     "cache",
		Aliases: []string{"caches"},
		Short:   "Manage the package caches of sandboxes",
		Long: `Fill, list, and empty caches. A cache is a directory on the host that sandboxes read instead of downloading
the same packages again. A sandbox uses the pip cache if the agent file sets cache: [pip] or you pass --cache pip.
Sandboxes cannot write to caches; only ` + "`cache fill`" + ` can.`,
	}, newCacheLsCmd(a), newCacheFillCmd(a), newCacheRmCmd(a))
}

func newCacheLsCmd(a *command) *cobra.Command {
	return a.Verb(cli.OutputFlags, &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List caches with their sizes and limits",
		Example: "  workcell cache ls -o json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			store, err := a.Caches()
			if err != nil {
				return err
			}
			list, err := store.List()
			if err != nil {
				return err
			}
			now := time.Now()
			head := []string{"NAME", "FILES", "SIZE", "LIMIT", "FILLED", "DIRECTORY"}
			return cli.PrintList(a.Command, list, head, func(in cache.Info) []string {
				filled := "never"
				if !in.Filled.IsZero() {
					filled = app.Age(now.Sub(in.Filled)) + " ago"
				}
				return []string{in.Name, fmt.Sprint(in.Files), cli.ByteSize(in.Bytes), cli.ByteSize(in.MaxBytes), filled, in.Dir}
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

func newCacheFillCmd(a *command) *cobra.Command {
	o := &cacheFillOptions{}
	cmd := a.Verb(cli.EngineFlags|cli.ImageFlags, &cobra.Command{
		Use:   "fill [flags] NAME [--] COMMAND [ARG…]",
		Short: "Run a command and cache its downloads",
		Long: `Run a command in a temporary sandbox and add the files that the command downloads to the cache. Environment
variables make pip, npm, and go download to the cache; other programs find its directory in CACHE_DIR. New sandboxes
can then read the files. If the command fails or the cache would exceed its maximum size, the cache is left unchanged.

All sandboxes that use the cache get these files, so only run commands that you trust.`,
		Example: "  workcell cache fill pip -- pip download pandas requests\n  workcell cache fill npm --from . -- npm ci\n" +
			"  workcell cache fill go --image golang:1 --from . -- go mod download",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return app.UsageError(errors.New("cache name and command required"), "workcell cache fill NAME -- COMMAND")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Name, o.Argv = args[0], args[1:]
			return o.run(cmd.Context(), a)
		},
	})
	f := cmd.Flags()
	f.StringVar(&o.Request.Image, "image", "",
		"`IMAGE`: image to run the command in (default: the Python image for pip, Node for npm, or bash)")
	f.StringVar(&o.from, "from", "", "`DIR`: local directory to copy to the command's working directory")
	f.StringArrayVar(&o.hosts, "network-allow", nil,
		"`HOST`: host to allow instead of the cache's registry: NAME, *.NAME, NAME:PORT, registry:NAME (repeatable)")
	cli.EnvFlag(f, &o.env)
	f.Int64Var(&o.sizeMB, "size-mb", 0,
		fmt.Sprintf("maximum size of the cache in MiB (default %d)", cache.DefaultMaxBytes>>20))
	f.BoolVar(&o.Fresh, "fresh", false, "discard the existing contents of the cache")
	return cli.BeforeCommand(cmd)
}

func (o *cacheFillOptions) run(ctx context.Context, a *command) error {
	if err := a.CheckCaches([]string{o.Name}); err != nil {
		return err
	}
	if o.sizeMB < 0 || o.sizeMB > 1<<20 {
		return app.InvalidFlag("size-mb", o.sizeMB, "must be 1 to 1048576")
	}
	variables, err := cli.ParseEnv(a.Options.Env, o.env)
	if err != nil {
		return err
	}
	if o.Request.Image == "" {
		runtimes := map[string]frontmatter.Runtime{"pip": frontmatter.RuntimePython, "npm": frontmatter.RuntimeNode}
		wish.DefaultImage(&o.Request, cmp.Or(runtimes[o.Name], frontmatter.RuntimeBash))
	}
	p := a.Progress()
	defer p.Close()
	o.Request.Env, o.Request.Egress.Allow = variables, o.hosts
	o.Request.OCIRuntime, o.Request.OnPull = a.Options.OCIRuntime, p.Pull
	o.MaxBytes, o.Stdout, o.Stderr = o.sizeMB<<20, a.Stderr, a.Stderr
	if o.from != "" {
		o.Request.Prepare = func(ctx context.Context, s *session.Session) error {
			return transfer.In(ctx, s, o.from+"/.", nil, o.from, ".", transfer.Observer{
				Progress: func(transfer.Event) {},
				Failed:   func(path string, reason error) { p.Line("workcell: %s: %s", path, reason) },
			})
		}
	}
	return a.WithManager(ctx, app.Use{}, func(ctx context.Context, m *app.Manager) error {
		store, err := a.Caches()
		if err != nil {
			return err
		}
		in, err := store.Fill(ctx, m.Manager, o.FillOptions)
		if err != nil {
			return err
		}
		a.Notice("cache %s has %d files (%s)", in.Name, in.Files, cli.ByteSize(in.Bytes))
		return nil
	})
}

func newCacheRmCmd(a *command) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME…",
		Short: "Empty caches",
		Long: "Empty caches. Open sandboxes keep the old contents. After a day, `sandbox gc --yes` deletes them " +
			"from disk.",
		Example: "  workcell cache rm pip npm",
		Aliases: []string{"remove", "clear"},
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := a.CheckCaches(args); err != nil {
				return err
			}
			store, err := a.Caches()
			for _, name := range args {
				if err == nil {
					err = store.Remove(name)
				}
			}
			return err
		},
	}
}
