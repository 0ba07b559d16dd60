package kit

import (
	"context"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
)

const sizingBound = 2 * time.Minute // maximum time of the probe

// NewSizing returns a function to find out how this host can enforce a workspace limit. probe tries to create a
// workspace with a separate file system. If the host does not support it, probe returns an error.
//
// The function calls probe on first use. It returns an error if ctx ends or if probe has a temporary failure, for
// example a full disk. Temporary failures are not cached. The function is safe for concurrent use.
func NewSizing(calls *Calls, probe func(context.Context) error) func(context.Context) (backend.Enforcement, error) {
	lock := semaphore.NewWeighted(1) // held while a caller uses found
	var found backend.Enforcement
	return func(ctx context.Context) (backend.Enforcement, error) {
		if err := lock.Acquire(ctx, 1); err != nil {
			return "", err
		}
		defer lock.Release(1)
		if found != "" {
			return found, nil
		}
		ctx, cancel := context.WithTimeout(ctx, sizingBound)
		defer cancel()
		err := probe(ctx)
		switch {
		case err == nil:
			found = backend.WorkspaceSized
		// These shortages may be temporary.
		case ctx.Err() != nil || host.IsAny(err, syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM, syscall.EMFILE,
			syscall.ENFILE, syscall.EAGAIN, syscall.EBUSY, syscall.EINTR):
			return "", err
		default:
			log, name := calls.o.Log, calls.o.Name
			log.Info(name+": no file systems for workspaces on this host, so their size is only monitored", "error", err)
			found = backend.WorkspaceWatched
		}
		return found, nil
	}
}
