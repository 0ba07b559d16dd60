package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/firebase/genkit/go/core/status"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// hostCalls holds the host tools a binding's commands may call. If nil, commands may call none.
type hostCalls struct {
	set  *hosttools.Set
	name string // of interpreters whose code may call them

	mu       sync.Mutex            // guards the fields below
	declared map[string]bool       // by sandbox id: declarations were written
	running  map[string]*hostGrant // by exec id: access of commands with possibly running processes
}

// hostCalls fixes the set of host tools an agent's code may call.
func (t *toolbox) hostCalls(ctx context.Context, cfg Sandbox, run session.Run) (*hostCalls, error) {
	switch {
	case cfg.HostTools == nil:
		return nil, nil
	case t.plugin.HostTools == nil:
		return nil, fmt.Errorf("tools: %w: host_tools requires host tools; set Plugin.HostTools, or specify a file with "+
			"--host-tools", backend.ErrInvalid)
	}
	g := hosttools.Grant{
		Rules: *cfg.HostTools, Approver: hosttools.ApproverFromContext(ctx), Caller: hosttools.Caller{Run: run.ID},
	}
	if a, ok := ctx.Value(agentKey{}).(*Agent); ok {
		g.Caller.Agent, g.File = a.name, a.doc.File
	}
	set, err := t.plugin.HostTools.Set(ctx, g)
	switch {
	case errors.As(err, new(*hosttools.RulesError)):
		return nil, fmt.Errorf("tools: %w", err)
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("tools: %w", ctx.Err())
	case err != nil: // a server did not answer
		return nil, status.Errorf(status.ErrUnavailable, "tools: %w", err)
	}
	return &hostCalls{set: set, name: record.NewID(), declared: map[string]bool{}, running: map[string]*hostGrant{}}, nil
}

// interpreter returns the name of the binding's interpreters. Because other agents must not have access to the host
// tools, an agent with host tools has separate interpreters.
func (h *hostCalls) interpreter() string {
	if h == nil {
		return ""
	}
	return h.name
}

// grant gives the command of req access to the host tools. The caller must call recordHostCalls after the command
// returned.
func (h *hostCalls) grant(ctx context.Context, s *session.Session, req *sandbox.ExecRequest) (*hostGrant, error) {
	if h == nil {
		return nil, nil
	}
	at, err := hosttools.Attach(ctx, s.Sandbox)
	if err == nil {
		err = h.declare(ctx, at, s.ID())
	}
	if err != nil {
		return nil, err
	}
	return &hostGrant{at: at, access: at.Grant(ctx, h.set, req)}, nil
}

// declare writes the declarations of the host tools into a sandbox, once per sandbox.
func (h *hostCalls) declare(ctx context.Context, at *hosttools.Attachment, id string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.declared[id] {
		return nil
	}
	if err := at.Declare(ctx, h.set); err != nil {
		fail := *toolspec.ErrorOf(err)
		fail.Message = "cannot write the list of host tools to the sandbox: " + fail.Message
		return &fail
	}
	h.declared[id] = true
	return nil
}

// endHostCalls ends the running calls and the interpreters with access when the run of the agent ends, and removes the
// saved results.
func (b *binding) endHostCalls(ctx context.Context) {
	if b.hosts == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := b.hosts.set.Close(ctx); err != nil {
		b.box.log.ErrorContext(ctx, "host tools called by an agent's code do not finish", "error", err)
	}
	b.hosts.mu.Lock()
	defer b.hosts.mu.Unlock()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout) // Close may have used up ctx
	defer cancel()
	var ending sync.WaitGroup
	for _, g := range b.hosts.running {
		if g.interpreter != nil {
			ending.Go(func() { _, _ = g.interpreter.Signal(end, "") }) // no later call can use it; it may have exited
		}
	}
	ending.Wait()
	for _, g := range b.hosts.running {
		if end.Err() == nil { // because each sweep has its own timeout
			b.sweep(end, g)
		}
	}
}

// hostGrant is the access of one command to the host tools.
type hostGrant struct {
	at          *hosttools.Attachment
	access      *hosttools.Access
	interpreter *sandbox.Command // set if the command is an interpreter
}

// settings returns the settings of the binding's commands in s.
func (b *binding) settings(s *session.Session) sandbox.Settings {
	in := s.Settings()
	if b.hosts != nil {
		in.Tools = b.hosts.set.Digest()
	}
	return in
}

// evidence returns what results show of the settings in force in s, and notes it for the agent ctx belongs to.
func (b *binding) evidence(ctx context.Context, s *session.Session) sandbox.Evidence {
	e := b.settings(s).Evidence()
	if o, ok := ctx.Value(openingKey{}).(*opening); ok {
		o.mu.Lock()
		defer o.mu.Unlock()
		if !slices.Contains(o.used, e) {
			o.used = append(o.used, e)
		}
	}
	return e
}

// recordHostCalls returns the counts of calls by a command whose result is returned. It returns nil if the command
// could not call host tools. If the command and all of its processes have ended, the saved results of its calls are
// removed. Otherwise, the access is remembered.
func (b *binding) recordHostCalls(ctx context.Context, g *hostGrant, res sandbox.ExecResult) *hosttools.Counts {
	if g == nil {
		return nil
	}
	b.hosts.mu.Lock()
	ended := res.Done() && !res.Leaked
	if ended {
		delete(b.hosts.running, res.ExecID)
	} else {
		b.hosts.running[res.ExecID] = g
	}
	b.hosts.mu.Unlock()
	if ended {
		b.sweep(ctx, g)
	}
	return new(g.access.Counts())
}

// granted returns the access of a command returned while running.
func (b *binding) granted(execID string) *hostGrant {
	if b.hosts == nil {
		return nil
	}
	b.hosts.mu.Lock()
	defer b.hosts.mu.Unlock()
	return b.hosts.running[execID]
}

func (b *binding) sweep(ctx context.Context, g *hostGrant) {
	if err := g.at.Sweep(ctx, g.access); err != nil {
		b.box.log.WarnContext(ctx, "cannot remove the results of host tools", "error", err)
	}
}

// hostNote returns a note for the model explaining how code calls the host tools and lists them. Without host tools, it
// is empty.
func (b *binding) hostNote() string {
	if b.hosts == nil {
		return ""
	}
	index := b.hosts.set.Index()
	if index == "" {
		return ""
	}
	how := map[string]string{
		"python": "`from workcell import tools`, then tools.server.name(argument=value); a failure raises ToolError",
		"node":   "`await tools.server.name({argument: value})`, tools is global; a failure throws",
		"bash":   "`tools call server.name '{\"argument\": value}'`; a failure exits non-zero",
	}[cmp.Or(string(b.cfg.Runtime), "python")]
	return "\n\nCode can call host tools: " + how + ". They are:\n" + index
}
