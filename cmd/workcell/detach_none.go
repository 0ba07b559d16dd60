//go:build no_postgres

package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// errNoQueue is why no run can be detached. Such runs are in a database only, which cannot be opened.
var errNoQueue = fail(exitUnavailable, errors.New("detached runs require PostgreSQL, which this build does not include (tag no_postgres)"),
	"use a build with PostgreSQL")

func newWorkerCmd(*command) *cobra.Command {
	return &cobra.Command{
		Use: "worker", Short: "Not available in this build", Hidden: true, DisableFlagParsing: true, RunE: func(*cobra.Command, []string) error { return errNoQueue },
	}
}

func (*app) detach(context.Context, *workflow.Workflow, map[string]string, map[string]any) (workflow.Entry, error) {
	return workflow.Entry{}, errNoQueue
}

func (*app) enqueue(context.Context, runstore.Run, runNote) error { return errNoQueue }

func (*app) loadRun(_ context.Context, _ runstore.Run, n *runNote) (
	*workflow.Workflow, map[string]string, func(context.Context, string) error, func(), error,
) {
	wf, agents, err := loadWorkflow(n.Workflow, n.Agents)
	return wf, agents, nil, func() {}, err
}

func (*app) openFetched(context.Context, string) (string, *runfiles.Archive, error) {
	return "", nil, errNoQueue
}

func (*app) dropFiles(context.Context, string) error { return errNoQueue }

func (*app) showLog(_ context.Context, _ io.Writer, r runstore.Run, _ bool) (runstore.Run, error) {
	return r, errNoQueue
}

func (*app) cancelElsewhere(context.Context, runstore.Store, string, time.Duration, error) error {
	return errNoQueue
}
