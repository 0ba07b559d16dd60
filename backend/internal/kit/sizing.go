package kit

import (
	"context"
	"log/slog"
	"syscall"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

const sizingBound = 2 * time.Minute // how long finding out may take

// Sizing finds out, when it first matters, whether workspaces can be file systems of their own. It may be asked by
// several at once.
type Sizing struct {
	name  string
	log   *slog.Logger
	probe func(context.Context) error
	lock  chan struct{} // holds one token, taken while what follows is used
	found backend.Enforcement
}

// NewSizing returns a Sizing for the driver of a name. probe makes one such workspace; an error is that there can be
// none.
func NewSizing(name string, log *slog.Logger, probe func(context.Context) error) *Sizing {
	return &Sizing{name: name, log: log, probe: probe, lock: make(chan struct{}, 1)}
}

// Enforcement returns what can hold a workspace to its limit. An error is the end of ctx, or a failure that may pass,
// such as a full disk: it says nothing of the machine and is not remembered.
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
	// A shortage may pass.
	case ctx.Err() != nil || IsAny(err, syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE,
		syscall.EAGAIN, syscall.EBUSY, syscall.EINTR):
		return "", err
	default:
		s.log.Info(s.name+": no file systems for workspaces on this host, so their size is only monitored", "error", err)
		s.found = backend.WorkspaceWatched
	}
	return s.found, nil
}
