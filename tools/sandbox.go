package tools

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/session"
)

// Sandbox is what an agent asks of its sandbox, as `sandbox:` in frontmatter: sandbox_run in modes compute and script,
// the other tools in code mode, and in mode executor a coding agent that answers in the model's place.
type Sandbox = frontmatter.Sandbox

// middleware offers a model the tools of a sandbox. Genkit copies it for each call and reads `use:` of a file into it.
type middleware struct {
	frontmatter.Sandbox
	box *toolbox
}

var _ ai.Middleware = middleware{}

// Name is the name of the middleware.
func (middleware) Name() string { return frontmatter.Middleware }

// UnmarshalJSON reads a configuration as strictly as frontmatter is read: Genkit alone would ignore misspelt keys.
func (m *middleware) UnmarshalJSON(b []byte) error {
	cfg, err := frontmatter.ParseConfig(frontmatter.Middleware, b)
	if err != nil {
		return err
	}
	m.Sandbox = *cfg
	return nil
}

// New makes the hooks of one Generate call, with tools of its own. It opens nothing.
func (m middleware) New(ctx context.Context) (*ai.Hooks, error) {
	b, err := m.box.bind(ctx, m.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := b.chatIn(ctx); err != nil {
		return nil, err
	}
	b.recordedBy(transcript.ClaimSandbox(ctx))
	if m.Mode == frontmatter.ModeExecutor {
		return b.executorHooks(), nil
	}
	g := &guard{log: m.box.log}
	return &ai.Hooks{
		Tools:        append(b.offered(), b.unknownTool()),
		WrapGenerate: b.wrapGenerate,
		WrapModel:    g.wrapModel,
		WrapTool:     g.wrapTool,
	}, nil
}

// bind checks a configuration and makes what its tools share.
func (t *toolbox) bind(ctx context.Context, cfg Sandbox) (*binding, error) {
	if problems := cfg.Problems(); len(problems) > 0 {
		texts := make([]string, len(problems))
		for i, p := range problems {
			texts[i] = p.Error()
		}
		return nil, fmt.Errorf("tools: %s", strings.Join(texts, "; "))
	}
	cfg.Env = maps.Clone(cfg.Env)
	b := newBinding(t, cfg)
	var err error
	b.hosts, err = t.hostCalls(ctx, cfg, b.run(ctx))
	return b, err
}

// wrapGenerate makes a run for a call that belongs to none, and closes what nobody can use afterwards. The
// first iteration encloses all others. The run of a Genkit agent's session stays: its sandboxes go when they are idle.
func (b *binding) wrapGenerate(ctx context.Context, p *ai.GenerateParams, next ai.GenerateNext) (*ai.ModelResponse, error) {
	if p.Iteration > 0 {
		return next(ctx, b.noticed(p))
	}
	ctx = context.WithValue(ctx, modelKey{}, p.Options.Model)
	next = b.keepingArtifacts(next)
	if run, ok := runOf(ctx); ok {
		ctx = session.WithRun(ctx, run)
		defer b.interrupted.after(func() {
			b.end(ctx)
			b.setAside(ctx)
			b.endHostCalls(ctx)
		})
		if b.chat != "" {
			ctx = context.WithValue(ctx, chatKey{}, b.chat)
			b.remembers(p.Request.Messages)
		}
		b.continueIn(ctx)
		return next(ctx, p)
	}
	run := b.fallback
	defer b.interrupted.after(func() {
		b.setAside(ctx)
		b.endRun(ctx, run)
		b.endHostCalls(ctx)
	})
	return next(session.WithRun(ctx, run), p)
}
