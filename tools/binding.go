package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// cleanupTimeout limits the cleanup after a call or a Generate.
const cleanupTimeout = 60 * time.Second

// maxTracked is the maximum number of remembered commands per sandbox without visible processes. The sandbox itself
// does not remember more of them.
const maxTracked = 256

// binding connects the tools of one Generate call to their sandboxes. The first tool needing a sandbox opens it.
type binding struct {
	box      *toolbox
	cfg      frontmatter.Sandbox // as configured, without defaults
	fallback session.Run         // for calls whose context has no run
	// Name of this binding's private sandbox; empty if it uses a shared sandbox.
	isolated string
	// Records the agent's conversation; nil if it is not recorded.
	record *transcript.Recorder
	// chatID of the Genkit agent's session; empty without such a session.
	chat     string
	check    func(ctx context.Context, args toolspec.Args) *toolspec.Error // CallOptions.Check
	makeRoom func(ctx context.Context) bool                                // CallOptions.MakeRoom; may be nil
	shared   bool                                                          // CallOptions.Shared
	hosts    *hostCalls                                                    // host tools code may call; nil for none
	// maxSeconds is the longest timeout_seconds in notes and Definitions.
	maxSeconds, readBytes, streamChars int64

	interrupted pending // calls of interrupted tools

	mu       sync.Mutex
	opened   map[session.Key]*session.Session // sandboxes opened by this binding, possibly by calls of several runs
	released map[string]bool                  // ids released by sandbox_close
	started  map[string][]startedExec         // by sandbox id; execs with possibly running processes
	programs map[string]program               // by id; interpreter programs returned while still running
	used     bool                             // earlier turns of the conversation used the private sandbox
	expired  bool                             // the private sandbox is gone, and the model must be notified
	dead     map[*session.Session]bool        // lost sandboxes of mode script, which the next call replaces
	// Exec ids of interpreters this binding used, with `session: user`.
	interpreters []string
}

func newBinding(box *toolbox, cfg frontmatter.Sandbox) *binding {
	b := &binding{
		box: box, cfg: cfg, fallback: session.Run{Namespace: record.NamespaceAgent, ID: session.NewRunID()},
		check:      func(context.Context, toolspec.Args) *toolspec.Error { return nil },
		maxSeconds: maxSeconds, readBytes: defaultReadBytes, streamChars: cmp.Or(cfg.MaxStdoutBytes, maxStreamChars),
		opened: map[session.Key]*session.Session{}, released: map[string]bool{}, started: map[string][]startedExec{},
		programs: map[string]program{}, dead: map[*session.Session]bool{},
	}
	if cfg.Session == frontmatter.SessionIsolated {
		b.isolated = rules.IsolatedName(record.NewID())
	}
	return b
}

func (b *binding) run(ctx context.Context) session.Run {
	if b.cfg.Session == frontmatter.SessionUser {
		return session.Run(record.UserScope(session.UserFromContext(ctx)))
	}
	if run, ok := runOf(ctx); ok {
		return run
	}
	return b.fallback
}

// name returns the name of the agent's sandbox. In an isolated step, only a user's sandbox differs from the step's.
func (b *binding) name(ctx context.Context) string {
	around, own := session.SessionNameFromContext(ctx), b.cfg.Session
	switch {
	case b.isolated != "":
		return b.isolated
	case own == "", own == frontmatter.SessionDefault, own != frontmatter.SessionUser && rules.IsIsolated(around):
		return around
	}
	return own
}

// mayUse reports whether the agent may use the run's sandbox with this name. An agent may always use its own sandbox.
// It may use any other sandbox if neither of the two is isolated.
func (b *binding) mayUse(ctx context.Context, name string) bool {
	own := b.name(ctx)
	return name == own || b.cfg.Session != frontmatter.SessionUser && !rules.IsIsolated(own) && !rules.IsIsolated(name)
}

// request returns the agent's request, merged over the base request of its run. runtime is the agent's runtime or the
// runtime of this call. If runtime is empty, any runtime will do. wishes lists the fields the agent set itself.
func (b *binding) request(ctx context.Context, runtime frontmatter.Runtime) (req session.Request, wishes []string) {
	cfg := b.cfg
	req = wish.Request(cfg)
	if cfg.Keep == frontmatter.KeepWorkspace { // if this process dies, the sandbox must not be removed while it is idle
		req.IdlePolicy = record.IdleStop
	}
	if cfg.Mode == frontmatter.ModeExecutor && req.Image == "" {
		if image := b.box.executorImage(cfg.Executor); image != "" {
			// Without an image, the coding agent is a program of any image.
			req.Image, req.DefaultImage = image, true
			wishes = append(wishes, "image")
		}
	}
	for name, set := range map[string]bool{
		"image": cfg.Image != "" || cfg.Runtime != "", "user": cfg.User != "", "root": cfg.Root != "",
		"env":    len(cfg.Env) > 0,
		"limits": req.Limits != backend.Limits{}, "network": req.Network != "" || len(req.Egress.Services) > 0,
	} {
		if set {
			wishes = append(wishes, name)
		}
	}
	if base, ok := session.BaseFromContext(ctx); ok {
		if req.Image == "" && b.ownImage(base, runtime) {
			wish.DefaultImage(&req, runtime)
		}
		req = req.WithDefaults(base)
	}
	if req.Image == "" {
		wish.DefaultImage(&req, runtime)
	}
	return req, wishes
}

// withRequest returns ctx with the agent's request. The request determines whether this process serves the allowed
// hosts of a joined sandbox.
func (b *binding) withRequest(ctx context.Context) context.Context {
	req, _ := b.request(ctx, b.cfg.Runtime)
	return session.WithBase(ctx, req)
}

// ownImage reports whether code in runtime needs an image other than the base's image. The runtime of an image set
// without a runtime is unknown. ownImage accepts such an image, because the run's shared sandbox can have only one
// image.
func (b *binding) ownImage(base session.Request, runtime frontmatter.Runtime) bool {
	switch {
	case runtime == "":
		return false
	case base.Language != "":
		return base.Language != string(runtime)
	}
	return b.cfg.Mode != frontmatter.ModeCode || b.cfg.Session != "" && b.cfg.Session != frontmatter.SessionDefault
}

// open returns the sandbox with this name and adds it to the binding. If the sandbox was opened with another request,
// the agent shares it unless the agent itself set one of the differing fields.
func (b *binding) open(ctx context.Context, name string) (s *session.Session, created bool, err error) {
	if err := checkUser(ctx, b.cfg); err != nil {
		return nil, false, err
	}
	key := b.run(ctx).Key(name)
	req, wishes := b.request(ctx, b.cfg.Runtime)
	if name == b.name(ctx) {
		defer func() { noteOpened(ctx, err) }()
	}
	s, created, err = b.openAs(ctx, key, req)
	if conflict, ok := errors.AsType[*session.ConflictError](err); ok {
		fields := slices.DeleteFunc(slices.Clone(conflict.Fields), func(f string) bool { return !slices.Contains(wishes, f) })
		if err = (&session.ConflictError{Key: key, Fields: fields}); len(fields) == 0 {
			req.Mode, req.Match, req.IdlePolicy = session.OpenAsIs, wishes, ""
			s, created, err = b.openAs(ctx, key, req)
		}
	}
	if err != nil {
		return nil, false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.dead, b.opened[key])
	b.opened[key] = s
	delete(b.released, s.ID())
	if name == b.name(ctx) {
		b.expired = b.expired || created && b.used
		b.used = false
	}
	return s, created, nil
}

// checkUser returns an error if the sandbox belongs to a user and no user is specified. Either the agent's file or the
// session of a Genkit agent can require a user.
func checkUser(ctx context.Context, cfg frontmatter.Sandbox) error {
	if cfg.Session == frontmatter.SessionUser && session.UserFromContext(ctx) == "" {
		return fmt.Errorf("the sandbox belongs to a user, but no user is specified; use session.WithUser or --user NAME: %w",
			backend.ErrInvalid)
	}
	return checkChat(ctx)
}

// openAs opens a sandbox. If the sandbox limit is reached, it calls makeRoom to remove another sandbox and tries again.
func (b *binding) openAs(ctx context.Context, key session.Key, req session.Request) (*session.Session, bool, error) {
	s, created, err := b.box.manager.Open(ctx, key, req)
	if errors.Is(err, backend.ErrCapacity) && b.makeRoom != nil && b.makeRoom(ctx) {
		s, created, err = b.box.manager.Open(ctx, key, req)
	}
	if errors.Is(err, backend.ErrCapacity) {
		err = toolspec.ErrorOf(err).WithRemediation("Try again later. If you have the tool sandbox_close, close a sandbox " +
			"that you no longer need with delete_workspace: true.")
	}
	return s, created, err
}

// inRun returns the sandboxes this binding opened in the run of ctx.
func (b *binding) inRun(ctx context.Context) map[session.Key]*session.Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	mine, scope := maps.Clone(b.opened), b.run(ctx).Scope()
	maps.DeleteFunc(mine, func(key session.Key, _ *session.Session) bool { return key.Scope() != scope })
	return mine
}

// sandbox returns the sandbox with id. If id is empty, it returns the only sandbox in scope, and opens one if none
// exists.
func (b *binding) sandbox(ctx context.Context, id string) (*session.Session, error) {
	b.mu.Lock()
	released, dead := b.released[id], maps.Clone(b.dead)
	b.mu.Unlock()
	if err := b.syncSiblings(ctx, id); err != nil {
		return nil, err
	}
	mine := b.inRun(ctx)
	maps.DeleteFunc(mine, func(_ session.Key, s *session.Session) bool { return dead[s] })
	switch {
	case released:
		return nil, toolspec.Failf(toolspec.CodeClosed, "the sandbox was closed by sandbox_close")
	case id != "":
		return b.byID(ctx, id)
	case len(mine) == 0:
		s, _, err := b.open(ctx, b.name(ctx))
		return s, err
	case len(mine) == 1:
		for _, s := range mine {
			return s, nil
		}
	}
	names := make([]string, 0, len(mine))
	for key, s := range mine {
		names = append(names, fmt.Sprintf("%s (%s)", s.ID(), key.Name))
	}
	slices.Sort(names)
	return nil, toolspec.Failf(toolspec.CodeInvalid, "sandbox_id is required, because there are several sandboxes: %s",
		strings.Join(names, ", ")).
		WithRemediation("Pass the sandbox_id of one of them.")
}

// withSandbox returns the handler of a tool whose calls always need their sandbox.
func withSandbox[In interface{ id() string }, Out any](b *binding,
	do func(context.Context, *session.Session, In) (Out, error)) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (out Out, err error) {
		s, err := b.sandbox(ctx, in.id())
		if err != nil {
			return out, err
		}
		return do(ctx, s, in)
	}
}

// syncSiblings adds the sandboxes other processes opened in the run of ctx to the binding. It does nothing if the call
// specifies an id.
func (b *binding) syncSiblings(ctx context.Context, id string) error {
	if !b.shared || id != "" {
		return nil
	}
	list, err := b.box.manager.Join(b.withRequest(ctx), b.run(ctx).Scope())
	b.mu.Lock()
	defer b.mu.Unlock()
	scope := b.run(ctx).Scope()
	maps.DeleteFunc(b.opened, func(key session.Key, s *session.Session) bool {
		// Drop the sandboxes another process removed.
		return err == nil && key.Scope() == scope && !slices.Contains(list, s)
	})
	for _, s := range list {
		if !b.released[s.ID()] && b.mayUse(ctx, s.Key().Name) {
			b.opened[s.Key()] = s
		}
	}
	return err
}

// byID returns a sandbox the agent may use. The error is the same for an unknown id and for the id of an inaccessible
// sandbox.
func (b *binding) byID(ctx context.Context, id string) (*session.Session, error) {
	s, err := b.box.manager.Lookup(b.withRequest(ctx), b.run(ctx).Scope(), id)
	if errors.Is(err, backend.ErrNotFound) || err == nil && !b.mayUse(ctx, s.Key().Name) {
		return nil, toolspec.Failf(toolspec.CodeNotFound, "sandbox not found in this run").
			WithRemediation("Use the sandbox_id from sandbox_open, or omit sandbox_id.")
	}
	return s, err
}

// release kills the commands this binding started in the sandbox and closes the sandbox's id for this binding. If a
// command could not be killed, the sandbox stays open, to allow another attempt by the next close.
func (b *binding) release(ctx context.Context, s *session.Session) error {
	b.mu.Lock()
	var ids []string
	for _, e := range b.started[s.ID()] {
		ids = append(ids, e.id)
	}
	b.mu.Unlock()
	if b.shared {
		all, err := s.Commands(ctx)
		if err != nil && !errors.Is(err, backend.ErrLost) && !errors.Is(err, backend.ErrClosed) {
			return err
		}
		for _, e := range all {
			if !slices.Contains(ids, e.ExecID) {
				ids = append(ids, e.ExecID)
			}
		}
	}
	if len(ids) > 0 {
		if err := errors.Join(slices.DeleteFunc(s.KillCommands(ctx, ids), isGone)...); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(s)
	b.released[s.ID()] = true
	return nil
}

// isGone reports whether an operation failed because the sandbox or its object no longer exists.
func isGone(err error) bool {
	return errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrClosed)
}

// forget removes s from the binding. The caller must hold mu.
func (b *binding) forget(s *session.Session) {
	delete(b.started, s.ID())
	maps.DeleteFunc(b.opened, func(_ session.Key, own *session.Session) bool { return own == s })
}

// remove removes the sandbox and its files.
func (b *binding) remove(ctx context.Context, s *session.Session) error {
	b.mu.Lock()
	b.forget(s)
	b.mu.Unlock()
	if err := b.box.manager.CloseSession(ctx, s.Key(), session.CloseOptions{}); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released[s.ID()] = true
	return nil
}

// startedExec is a command this binding started.
type startedExec struct {
	id    string
	ended bool // no process is visible, but processes with a closed output may remain
}

// track remembers a command, to allow killing the leftover processes later.
func (b *binding) track(s *session.Session, res sandbox.ExecResult) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := append(b.started[s.ID()], startedExec{id: res.ExecID, ended: res.Done() && !res.Leaked})
	if len(list) > maxTracked {
		if i := slices.IndexFunc(list, func(e startedExec) bool { return e.ended }); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
	}
	b.started[s.ID()] = list
}

// end removes the sandbox only this binding knows, because no later step of the run can use it.
func (b *binding) end(ctx context.Context) {
	b.mu.Lock()
	s := b.opened[b.run(ctx).Key(b.isolated)]
	b.mu.Unlock()
	if b.isolated == "" || b.chat != "" || s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := b.remove(ctx, s); err != nil {
		b.box.log.ErrorContext(ctx, "cannot remove an isolated sandbox yet", "sandbox", s.ID(), "error", err)
	}
}

// sandboxes returns the sandboxes this binding opened in any run.
func (b *binding) sandboxes() []*session.Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.opened))
}

// closeKeepingWorkspace removes a user's sandbox but keeps the workspace, if the agent's file says `keep: workspace`.
// It skips a sandbox another run is using. If the call is late, the resumed Generate call may be using the sandbox, so
// the idle timeout stops it.
func (b *binding) closeKeepingWorkspace(ctx context.Context, late bool) {
	b.mu.Lock()
	idle := b.interpreters // their programs are other commands
	b.interpreters = nil
	b.mu.Unlock()
	shared := b.box.users.add(idle, -1)
	if late || b.cfg.Keep != frontmatter.KeepWorkspace {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, s := range b.sandboxes() {
		err := b.release(ctx, s)
		running, lerr := s.Commands(ctx)
		if shared || lerr != nil || err == nil && slices.ContainsFunc(running, func(e sandbox.ExecStatus) bool {
			return !e.Done() && !slices.Contains(idle, e.ExecID)
		}) {
			continue // the idle timeout stops the sandbox, and the user's next run removes it
		}
		err = errors.Join(err, b.box.manager.CloseSession(ctx, s.Key(), session.CloseOptions{KeepWorkspace: true}))
		if err != nil {
			b.box.log.ErrorContext(ctx, "cannot remove a sandbox and keep its workspace", "sandbox", s.ID(), "error", err)
		}
	}
}

// useInterpreter notes an interpreter that the binding uses. An interpreter that no agent of this process has started
// counts as a command of another run.
func (b *binding) useInterpreter(id string, started bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.interpreters, id) && (started || b.box.users.add([]string{id}, 0)) {
		b.interpreters = append(b.interpreters, id)
		b.box.users.add([]string{id}, 1)
	}
}

// users counts the bindings that use an interpreter, by exec id.
type users struct {
	mu    sync.Mutex
	count map[string]int
}

// add changes the counts and reports whether other bindings use one of the interpreters.
func (u *users) add(ids []string, n int) (others bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, id := range ids {
		if u.count[id] += n; u.count[id] == 0 {
			delete(u.count, id)
		}
		others = others || u.count[id] > 0
	}
	return others
}

// endStarted kills everything the binding started in the sandboxes.
func (b *binding) endStarted(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, s := range b.sandboxes() {
		if err := b.release(ctx, s); err != nil {
			b.box.log.ErrorContext(ctx, "cannot kill processes of a canceled agent", "sandbox", s.ID(), "error", err)
		}
	}
}

// endRun closes all sandboxes of a run.
func (b *binding) endRun(ctx context.Context, run session.Run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := b.box.manager.CloseScope(ctx, run.Scope()); err != nil {
		b.box.log.ErrorContext(ctx, "cannot remove all sandboxes of a run yet", "run", run.ID, "error", err)
	}
}
