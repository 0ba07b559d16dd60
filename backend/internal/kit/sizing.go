package kit

import (
	"context"
	"syscall"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
)

const sizingBound = 2 * time.Minute // maximum time of the probe

// Sizing finds out on first use whether workspaces can be separate file systems. It is safe for concurrent use.
type Sizing struct {
	calls *Calls
	probe func(context.Context) error
	lock  chan struct{} // holds one token while a caller uses the fields below
	found backend.Enforcement
}

// NewSizing returns a Sizing for a driver. probe tries to create such a workspace. If the host does
// not support it, probe returns an error.
func NewSizing(calls *Calls, probe func(context.Context) error) *Sizing {
	return &Sizing{calls: calls, probe: probe, lock: make(chan struct{}, 1)}
}

// Enforcement returns how the host can enforce a workspace limit. It returns an error if ctx ends or if the probe has a
// temporary failure, for example a full disk. Enforcement does not cache temporary failures.
func (s *Sizing) Enforcement(ctx context.Context) (backend.Enforcement, error) {
	select {
	case s.lock <- struct{}{}:
		defer func() { <-s.lock }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if s.found != "" {
		return s.found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, sizingBound)
	defer cancel()
	err := s.probe(ctx)
	switch {
	case err == nil:
		s.found = backend.WorkspaceSized
	// These shortages may be temporary.
	case ctx.Err() != nil || host.IsAny(err, syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE,
		syscall.EAGAIN, syscall.EBUSY, syscall.EINTR):
		return "", err
	default:
		o := s.calls.o
		o.Log.Info(o.Name+": no file systems for workspaces on this host, so their size is only monitored", "error", err)
		s.found = backend.WorkspaceWatched
	}
	return s.found, nil
}
