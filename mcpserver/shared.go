package mcpserver

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/mcpserver/replica"
	"github.com/workcell-dev/workcell/session"
)

// shareSessions returns the handler of the sessions of all servers; nil where each has its own.
func (s *Server) shareSessions(srv *mcp.Server, o HTTPOptions) *replica.Sessions {
	if s.opts.Replicas == nil {
		return nil
	}
	all := replica.New(replica.Options{
		Registry: s.opts.Replicas, Origin: s.manager.Owner(), Server: srv, Idle: s.opts.IdleTimeout, Logger: s.log,
		Limits: replica.Limits{Owner: o.MaxOwnerSessions, All: o.MaxSessions}, Bind: s.bindShared, Ended: s.endShared,
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = all
	s.wg.Go(func() { all.Run(s.ctx) })
	return all
}

// bindShared makes the scope of a session that all servers know. It ends with the session as far as this server has to do with it;
// its sandboxes stay.
func (s *Server) bindShared(ss *mcp.ServerSession, e replica.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc, err := s.newScope(session.Run{Namespace: session.NamespaceReplica, ID: e.Run}, e.Owner, false, true)
	if err != nil {
		return err
	}
	s.bound[ss] = sc
	go func() {
		began := time.Now()
		_ = ss.Wait() // how it ended changes nothing
		measureSession(s.ctx, began, transportTCP)
		_ = s.endScope(s.ctx, sc, false) // which removes nothing, so that nothing fails
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.bound, ss)
	}()
	return nil
}

// endShared removes the sandboxes of runs that are over, whichever server ended them.
func (s *Server) endShared(runs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return // they go when they were idle for their time
	}
	for sc := range s.scopes {
		for _, run := range runs {
			if sc.run.ID == run {
				sc.cancel()
			}
		}
	}
	for _, id := range runs {
		run := session.Run{Namespace: session.NamespaceReplica, ID: id}
		s.wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), closeTimeout)
			defer cancel()
			s.logClose(run, s.closeRun(ctx, run))
		})
	}
}

// taskID returns the id of a session of execute_task in the registry.
func (sc *scope) taskID(id string) string { return sc.run.ID + "/" + id }

// sharedTask is taskRun for a session of execute_task that all servers know.
func (s *Server) sharedTask(ctx context.Context, sc *scope, id string, fresh session.Run) (run session.Run, _ string, leave func(), err error) {
	all, e := s.opts.Replicas, replica.Entry{ID: sc.taskID(id), Parent: sc.run.ID, Owner: sc.owner, Run: fresh.ID, Origin: s.manager.Owner()}
	known, err := all.Use(ctx, e.ID, sc.owner)
	if errors.Is(err, backend.ErrNotFound) {
		if id != fresh.ID && !sc.named {
			return run, "", nil, errNoTask()
		}
		known = e
		if err = all.Begin(ctx, e, replica.Limits{Owner: maxTaskSessions}); errors.Is(err, replica.ErrExists) {
			known, err = all.Use(ctx, e.ID, sc.owner)
		}
	}
	if errors.Is(err, replica.ErrOwnerFull) {
		err = errManyTasks()
	}
	if err != nil {
		return run, "", nil, err
	}
	sc.mu.Lock()
	defer sc.mu.Unlock()
	t := sc.tasks[id]
	if t == nil || t.run.ID != known.Run {
		t = &taskSession{run: session.Run{Namespace: sc.run.Namespace, ID: known.Run}}
		sc.tasks[id] = t
	}
	t.busy++
	return t.run, id, func() {
		_, _ = all.Use(context.WithoutCancel(ctx), e.ID, sc.owner) // that it began was noted
		sc.mu.Lock()
		defer sc.mu.Unlock()
		t.busy--
	}, nil
}

// sharedTasks returns the runs of the sessions of execute_task in a scope that all servers know.
func (s *Server) sharedTasks(ctx context.Context, sc *scope) (map[string]session.Run, error) {
	list, err := s.opts.Replicas.Below(ctx, sc.run.ID)
	runs := make(map[string]session.Run, len(list))
	for _, e := range list {
		runs[strings.TrimPrefix(e.ID, sc.taskID(""))] = session.Run{Namespace: sc.run.Namespace, ID: e.Run}
	}
	return runs, err
}

// endSharedTask ends a session of execute_task for all servers.
func (s *Server) endSharedTask(ctx context.Context, sc *scope, id string) {
	if !sc.shared() {
		return
	}
	ended, err := s.opts.Replicas.End(ctx, sc.taskID(id))
	if err != nil {
		s.log.ErrorContext(ctx, "cannot end a session of execute_task; it ends when it was idle for its time", "error", err)
	}
	s.mu.Lock()
	all := s.shared
	s.mu.Unlock()
	all.Over(context.WithoutCancel(ctx), ended)
}

// keepTasks notes the use of the sessions of execute_task in which something is under way here, and forgets the others: that there
// are any is in the registry.
func (s *Server) keepTasks(sc *scope) {
	sc.takeTasks(func(t *taskSession) bool { return t.busy == 0 })
	sc.mu.Lock()
	var ids []string
	for id := range sc.tasks {
		ids = append(ids, id)
	}
	sc.mu.Unlock()
	for _, id := range ids {
		if _, err := s.opts.Replicas.Use(s.ctx, sc.taskID(id), sc.owner); err != nil && s.ctx.Err() == nil {
			s.log.Warn("cannot note the use of a session of execute_task", "error", err)
		}
	}
}
