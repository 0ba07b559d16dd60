package mcpserver

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/semaphore"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/httpguard"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// localOwner is the owner of requests without a token.
const localOwner = httpguard.Local

func newRun(namespace string) session.Run {
	return session.Run{Namespace: namespace, ID: session.NewRunID()}
}

// scope is a set of related sandboxes, and the common state of the calls.
type scope struct {
	run   session.Run
	owner string
	// handles means calls must specify a sandbox, because several conversations share the scope.
	handles bool
	// named means client-chosen names are safe, because only one client can use them.
	named bool
	calls *tools.Calls
	slots chan struct{} // one per running call

	gates

	// ctx is done when the scope ends. The scope stores it because it limits the lifetime of the scope's calls.
	ctx    context.Context
	cancel context.CancelFunc

	// Of the HTTP session; guarded by Server.mu.
	used    time.Time // start or end of the latest request
	streams int       // open event streams

	mu    sync.Mutex // guards the fields below
	tasks map[string]*taskSession
}

// gates limit the concurrent work of one client.
type gates struct{ patches, edits bound.Gate }

// shared reports whether other servers use the sandboxes of the scope too.
func (sc *scope) shared() bool { return sc.run.Namespace == record.NamespaceReplica }

// sharedRun returns a run. Every server derives the same run from the same text.
func sharedRun(text string) session.Run {
	sum := sha256.Sum256([]byte(text))
	id := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16])
	return session.Run{Namespace: record.NamespaceReplica, ID: "run_" + strings.ToLower(id)}
}

// sharedTask returns the run of an execute_task session in a shared scope.
func (sc *scope) sharedTask(id string) session.Run { return sharedRun(sc.run.ID + "/" + id) }

// newScope creates a scope without sandboxes. The caller must hold s.mu.
func (s *Server) newScope(run session.Run, owner string, handles bool) (*scope, error) {
	if s.closed {
		return nil, errServerClosed
	}
	sc := &scope{
		run: run, owner: owner, handles: handles, named: !handles || owner != localOwner,
		slots: make(chan struct{}, maxCalls), tasks: map[string]*taskSession{}, used: time.Now(),
		gates: gates{
			patches: bound.Gate{One: semaphore.NewWeighted(1), All: s.patches},
			edits:   bound.Gate{One: semaphore.NewWeighted(2), All: s.edits},
		},
	}
	var err error
	if sc.calls, err = s.plugin.Calls(sc.run, s.opts.Sandbox, s.callOptions(sc)); err != nil {
		return nil, err
	}
	sc.ctx, sc.cancel = context.WithCancel(s.ctx)
	s.scopes[sc] = struct{}{}
	return sc, nil
}

// newHTTPScope is newScope for an owner's session, or for the requests without a session. All scopes of an owner share
// the gates, because the owner is the client.
func (s *Server) newHTTPScope(run session.Run, owner string, handles bool) (*scope, error) {
	sc, err := s.newScope(run, owner, handles)
	if err != nil {
		return nil, err
	}
	if _, ok := s.gates[owner]; !ok {
		s.gates[owner] = sc.gates
	}
	sc.gates = s.gates[owner]
	return sc, nil
}

var errServerClosed = fmt.Errorf("%w: the server is closing", backend.ErrClosed)

// endScope ends the calls of a scope. If remove is set, it also closes the scope's sandboxes.
func (s *Server) endScope(ctx context.Context, sc *scope, remove bool) error {
	sc.cancel()
	s.mu.Lock()
	delete(s.scopes, sc)
	maps.DeleteFunc(s.jobs, func(_ string, j *job) bool { return j.scope == sc })
	s.mu.Unlock()
	if !remove || sc.shared() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	errs := []error{s.closeRun(ctx, sc.run)}
	for _, t := range sc.takeTasks(func(*taskSession) bool { return true }) {
		errs = append(errs, s.closeRun(ctx, t.run))
	}
	return errors.Join(errs...)
}

// closeRun closes the sandboxes of a run.
func (s *Server) closeRun(ctx context.Context, run session.Run) error {
	err := s.manager.CloseScope(ctx, run.Scope())
	s.onClose(run)
	return err
}

func (s *Server) onClose(run session.Run) {
	if s.opts.OnClose != nil {
		s.opts.OnClose(run)
	}
}

// always returns a resolver with sc for all requests of a single client.
func always(sc *scope) resolver {
	return func(context.Context, *mcp.ServerSession, *mcp.RequestExtra) (*scope, error) { return sc, nil }
}

// bySession returns the scope of an HTTP session. The scope ends with the session.
func (s *Server) bySession(ctx context.Context, ss *mcp.ServerSession, extra *mcp.RequestExtra) (*scope, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sc := s.bound[ss]; sc != nil {
		return sc, nil
	}
	place, ok := ctx.Value(placeKey{}).(*place)
	if !ok || !place.bind() {
		closeSession(ss)
		return nil, errServerClosed
	}
	sc, err := s.newHTTPScope(newRun(record.NamespaceMCP), ownerOf(extra.TokenInfo), false)
	if err != nil {
		closeSession(ss)
		place.give()
		return nil, err
	}
	s.bound[ss] = sc
	go s.endWith(ss, sc, place)
	return sc, nil
}

// closeSession closes an HTTP session after the calls have ended.
func closeSession(ss *mcp.ServerSession) { go func() { _ = ss.Close() }() }

// use records the use of an HTTP session.
func (s *Server) use(ss *mcp.ServerSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sc := s.bound[ss]; sc != nil {
		sc.used = time.Now()
	}
}

// scopeOf returns the scope of an owner's HTTP session. It returns nil if the session does not exist.
func (s *Server) scopeOf(owner, id string) *scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss, sc := range s.bound {
		if id != "" && ss.ID() == id && sc.owner == owner {
			return sc
		}
	}
	return nil
}

// addStreams adds n to the open event streams of an HTTP session.
func (s *Server) addStreams(sc *scope, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc.streams += n
	sc.used = time.Now()
}

// endWith ends a scope when the session ends. If the server ends, Close or Detach handles the sandboxes instead.
func (s *Server) endWith(ss *mcp.ServerSession, sc *scope, place *place) {
	began := time.Now()
	_ = ss.Wait() // the reason for the end of the connection is irrelevant
	measureSession(s.ctx, began, transportTCP)
	place.give()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.bound, ss)
	if !s.closed {
		s.wg.Go(func() { s.logClose(sc.run, s.endScope(s.ctx, sc, true)) })
	}
}

// logClose logs the failed removal of a run's sandboxes. The manager tries again.
func (s *Server) logClose(run session.Run, err error) {
	if err != nil {
		s.log.Error("cannot remove all sandboxes of a session yet", "run", run.ID, "error", err)
	}
}

// byOwner returns the scope of the owner of a request without a session.
func (s *Server) byOwner(_ context.Context, _ *mcp.ServerSession, extra *mcp.RequestExtra) (*scope, error) {
	owner := ownerOf(extra.TokenInfo)
	s.mu.Lock()
	defer s.mu.Unlock()
	if sc := s.owners[owner]; sc != nil {
		return sc, nil
	}
	run := newRun(record.NamespaceMCP)
	if s.opts.Shared {
		run = sharedRun("requests of " + owner)
	}
	sc, err := s.newHTTPScope(run, owner, true)
	if err != nil {
		return nil, err
	}
	s.owners[owner] = sc
	return sc, nil
}

// ownerOf returns the owner of a token. Token names never equal localOwner.
func ownerOf(info *auth.TokenInfo) string {
	if info == nil {
		return localOwner
	}
	return info.UserID
}

// sweepLoop ends idle HTTP sessions and idle execute_task sessions. The manager closes idle sandboxes.
func (s *Server) sweepLoop() {
	for bound.Pause(s.ctx, min(sweepEvery, s.opts.IdleTimeout)) {
		s.sweep(time.Now())
	}
}

func (s *Server) sweep(now time.Time) {
	s.mu.Lock()
	scopes := slices.Collect(maps.Keys(s.scopes))
	s.forget(now)
	for ss, sc := range s.bound {
		if s.isUnused(sc, now) {
			closeSession(ss)
		}
	}
	s.mu.Unlock()
	for _, sc := range scopes {
		sc.calls.Forget()
		idle := sc.takeTasks(func(t *taskSession) bool { return t.busy == 0 && now.Sub(s.lastUse(t)) > s.opts.IdleTimeout })
		for _, t := range idle {
			if sc.shared() { // the sandboxes end when they are idle on all servers
				s.onClose(t.run)
				continue
			}
			ctx, cancel := context.WithTimeout(s.ctx, closeTimeout)
			s.logClose(t.run, s.closeRun(ctx, t.run))
			cancel()
		}
	}
}

// lastUse returns the time of the session's latest use by a task, or of the sandboxes by another tool.
func (s *Server) lastUse(t *taskSession) time.Time {
	last := t.lastUsed
	for _, one := range s.manager.InScope(t.run.Scope()) {
		if used := one.Info().LastUsed; used.After(last) {
			last = used
		}
	}
	return last
}
