//go:build no_postgres

package app

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// ErrNoQueue is the error for detached runs in builds without PostgreSQL, because detached runs exist only in a
// database.
var ErrNoQueue = Fail(ExitUnavailable,
	errors.New("detached runs require PostgreSQL, which this build does not include (tag no_postgres)"),
	"use a build with PostgreSQL")

func (*App) Detach(context.Context, *Program, map[string]any) (workflow.Entry, error) {
	return workflow.Entry{}, ErrNoQueue
}

func (*App) enqueue(context.Context, runstore.Run, runNote) error { return ErrNoQueue }

func (*App) fetchProgram(context.Context, runstore.Run, *runNote) (*Program, error) {
	return nil, ErrNoQueue
}

func (*App) openFetched(context.Context, string) (string, *runfiles.Archive, error) {
	return "", nil, ErrNoQueue
}

func (*App) dropFiles(context.Context, string) error { return ErrNoQueue }

func (*App) isQueued(context.Context, string) (bool, error) { return false, ErrNoQueue }

func (*App) ShowLog(_ context.Context, _ io.Writer, r runstore.Run, _ bool) (runstore.Run, error) {
	return r, ErrNoQueue
}

func (*App) cancelElsewhere(context.Context, runstore.Store, string, time.Duration, error) error {
	return ErrNoQueue
}
