package main

import (
	"context"
	"fmt"
	"log/slog"
	"testing/fstest"

	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/core/logger"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/internal/otelsetup"
)

// initGenkit starts Genkit without what a command must not have: the prompts of whatever directory it was started in,
// log lines, and panics. A plugin that cannot be set up panics; that is the user's configuration, so it becomes an error.
func (a *app) initGenkit(ctx context.Context, plugins ...api.Plugin) (g *genkit.Genkit, err error) {
	if a.env.Get("WORKCELL_DEBUG") == "" {
		logger.SetLevel(slog.LevelWarn)
	}
	defer func() {
		if r := recover(); r != nil {
			g, err = nil, fail(exitModel, fmt.Errorf("cannot set up the models: %v", r), "")
		}
	}()
	return genkit.Init(ctx,
		genkit.WithPlugins(plugins...),
		genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."), // else ./prompts is loaded
	), nil
}

// startTracing sets traces up, which must come before initGenkit.
func (a *app) startTracing(ctx context.Context, content bool) (context.Context, *otelsetup.Tracing) {
	return otelsetup.Start(ctx, otelsetup.Options{Env: a.env, Stderr: a.stderr, Version: buildVersion(), Content: content})
}
