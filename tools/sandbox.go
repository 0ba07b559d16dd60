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

// Sandbox configures an agent's sandbox. It has the same fields as `sandbox:` in frontmatter. Modes compute and script
// offer sandbox_run, and code mode offers the other tools. In mode executor, a coding agent answers instead of the
// model.
type Sandbox = frontmatter.Sandbox

// middleware offers the sandbox tools to a model. Genkit copies it for each call and decodes a file's `use:` into the
// copy.
type middleware struct {
	frontmatter.Sandbox
	box *toolbox
}

var _ ai.Middleware = middleware{}

// Name returns the name of the middleware.
func (middleware) Name() string { return frontmatter.Middleware }

// UnmarshalJSON parses a configuration as strictly as frontmatter. Genkit alone would ignore misspelled keys.
func (m *middleware) UnmarshalJSON(b []byte) error {
	cfg, err := frontmatter.ParseConfig(frontmatter.Middleware, b)
	if err != nil {
		return err
	}
	m.Sandbox = *cfg
	return nil
}

// New returns the hooks for one Generate call, with new tools. It opens no sandbox.
func (m middleware) New(ctx context.Context) (*ai.Hooks, error) {
	b, err := m.box.bind(ctx, m.Sandbox)
	if err == nil {
		err = b.chatIn(ctx)
	}
	if err != nil {
		return nil, classified(err)
	}
	if b.record = transcript.ClaimSandbox(ctx); b.record != nil && b.isolated != "" {
		b.isolated = b.record.Sandbox() // the process resuming the run uses the same name
	}
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

// bind checks a configuration and returns the binding the tools share.
func (t *toolbox) bind(ctx context.Context, cfg Sandbox) (b *binding, err error) {
	if problems := cfg.Problems(); len(problems) > 0 {
		texts := make([]string, len(problems))
		for i, p := range problems {
			texts[i] = p.Error()
		}
		return nil, fmt.Errorf("tools: %s", strings.Join(texts, "; "))
	}
	cfg.Env = maps.Clone(cfg.Env)
	b = newBinding(t, cfg)
	b.hosts, err = t.hostCalls(ctx, cfg, b.run(ctx))
	return b, err
}

// wrapGenerate creates a run for a call without one. At the end, it closes the sandboxes without a later use. The first
// iteration encloses all others. The run of a Genkit agent's session is not closed, so the sandboxes exist until their
// idle timeout.
func (b *binding) wrapGenerate(ctx context.Context, p *ai.GenerateParams,
	next ai.GenerateNext) (resp *ai.ModelResponse, err error) {
	if p.Iteration > 0 {
		return next(ctx, b.withExpiryNotice(p))
	}
	if _, inAgent := ctx.Value(openingKey{}).(*opening); !inAgent { // otherwise Agent.Run returns these errors
		if err := checkUser(ctx, b.cfg); err != nil {
			return nil, classified(err)
		}
		opening := &opening{}
		ctx = context.WithValue(ctx, openingKey{}, opening)
		defer func() {
			if err == nil {
				err = classified(opening.failure())
			}
		}()
	}
	ctx = context.WithValue(ctx, modelKey{}, p.Options.Model)
	next = b.keepingArtifacts(next)
	if run, ok := runOf(ctx); ok {
		ctx = session.WithRun(ctx, run)
		defer b.interrupted.after(func(late bool) {
			b.end(ctx)
			b.endHostCalls(ctx)
			b.closeKeepingWorkspace(ctx, late)
		})
		defer func() {
			if ctx.Err() != nil { // an interrupted call postpones the cleanup, and its caller may cancel ctx before
				b.endStarted(ctx)
			}
		}()
		if b.chat != "" {
			ctx = context.WithValue(ctx, chatKey{}, b.chat)
			b.markUsed(p.Request.Messages)
		}
		b.continueIn(ctx)
		return next(ctx, p)
	}
	run := b.fallback
	defer b.interrupted.after(func(late bool) {
		b.endRun(ctx, run)
		b.endHostCalls(ctx)
		b.closeKeepingWorkspace(ctx, late)
	})
	return next(session.WithRun(ctx, run), p)
}
