package tools

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
)

// Sandbox is the middleware with the sandbox tools for a model: sandbox_run in compute mode, the other tools in code mode.
// Its fields are those of `sandbox:` in frontmatter; see [frontmatter.Sandbox] for their meaning and zero values. Use it
// through [Plugin.Use], or by name through `use:`.
type Sandbox struct {
	Mode           frontmatter.Mode     `json:"mode,omitempty" jsonschema:"enum=compute,enum=code"`
	Runtime        frontmatter.Runtime  `json:"runtime,omitempty" jsonschema:"enum=python,enum=node,enum=bash"`
	Image          string               `json:"image,omitempty"`
	Session        string               `json:"session,omitempty"`
	YieldMS        int64                `json:"yield_ms,omitempty"`
	User           string               `json:"user,omitempty"`
	Root           frontmatter.RootMode `json:"root,omitempty" jsonschema:"enum=readonly,enum=writable"`
	Env            map[string]string    `json:"env,omitzero"`
	Limits         frontmatter.Limits   `json:"limits,omitzero"`
	Network        frontmatter.Network  `json:"network,omitzero"`
	TimeoutSeconds int64                `json:"timeout_seconds,omitempty"`
	MaxStdoutBytes int64                `json:"max_stdout_bytes,omitempty"`
	AllowNetwork   *bool                `json:"allow_network,omitempty"`
	PipPackages    []string             `json:"pip_packages,omitzero"`
	NpmPackages    []string             `json:"npm_packages,omitzero"`

	// box is set by the plugin. Genkit copies the value for each call, so nothing but this pointer is shared.
	box *toolbox
}

// Name is the name of the middleware.
func (Sandbox) Name() string { return frontmatter.Middleware }

// UnmarshalJSON reads a configuration as strictly as frontmatter is read: Genkit alone would ignore misspelt keys.
func (s *Sandbox) UnmarshalJSON(b []byte) error {
	cfg, err := frontmatter.ParseConfig(frontmatter.Middleware, b)
	if err != nil {
		return err
	}
	box := s.box
	*s = fromConfig(*cfg)
	s.box = box
	return nil
}

func fromConfig(c frontmatter.Sandbox) Sandbox {
	return Sandbox{
		Mode: c.Mode, Runtime: c.Runtime, Image: c.Image, Session: c.Session, YieldMS: c.YieldMS, User: c.User, Root: c.Root, Env: c.Env,
		Limits: c.Limits, Network: c.Network, TimeoutSeconds: c.TimeoutSeconds, MaxStdoutBytes: c.MaxStdoutBytes,
		AllowNetwork: c.AllowNetwork, PipPackages: c.PipPackages, NpmPackages: c.NpmPackages,
	}
}

// config returns the sandbox as frontmatter knows it, sharing nothing with s.
func (s Sandbox) config() frontmatter.Sandbox {
	c := frontmatter.Sandbox{
		Mode: s.Mode, Runtime: s.Runtime, Image: s.Image, Session: s.Session, YieldMS: s.YieldMS, User: s.User, Root: s.Root, Env: maps.Clone(s.Env),
		Limits: s.Limits, Network: s.Network, TimeoutSeconds: s.TimeoutSeconds, MaxStdoutBytes: s.MaxStdoutBytes,
		PipPackages: slices.Clone(s.PipPackages), NpmPackages: slices.Clone(s.NpmPackages),
	}
	if s.AllowNetwork != nil {
		allow := *s.AllowNetwork
		c.AllowNetwork = &allow
	}
	return c
}

// binding checks the configuration and makes what its tools share.
func (s Sandbox) binding() (*binding, error) {
	if s.box == nil {
		return nil, errors.New("tools: this Sandbox belongs to no plugin; make it with (*Plugin).Use")
	}
	cfg := s.config()
	if problems := cfg.Problems(); len(problems) > 0 {
		texts := make([]string, len(problems))
		for i, p := range problems {
			texts[i] = p.String()
		}
		return nil, fmt.Errorf("tools: %s", strings.Join(texts, "; "))
	}
	return newBinding(s.box, cfg), nil
}

// New makes the hooks of one Generate call, with tools of its own. It opens nothing.
func (s Sandbox) New(context.Context) (*ai.Hooks, error) {
	b, err := s.binding()
	if err != nil {
		return nil, err
	}
	g := guard{log: s.box.log}
	return &ai.Hooks{
		Tools:        append(b.offered(), b.unknownTool()),
		WrapGenerate: b.wrapGenerate,
		WrapModel:    g.wrapModel,
		WrapTool:     g.wrapTool,
	}, nil
}

// wrapGenerate makes a run for a call that belongs to none, and closes what nobody can use afterwards. The
// first iteration encloses all others.
func (b *binding) wrapGenerate(ctx context.Context, p *ai.GenerateParams, next ai.GenerateNext) (*ai.ModelResponse, error) {
	if p.Iteration > 0 {
		return next(ctx, p)
	}
	if _, ok := session.RunFromContext(ctx); ok {
		defer b.end(ctx)
		return next(ctx, p)
	}
	run := b.fallback
	defer b.endRun(ctx, run)
	return next(session.WithRun(ctx, run), p)
}

var _ ai.Middleware = Sandbox{}
