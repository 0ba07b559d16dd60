package mcpserver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/record"
)

// refusedBy returns the error for a call refused by a policy rule. It contains the rule's name for the operator.
func refusedBy(rule, format string, args ...any) *toolspec.Error {
	e := toolspec.Failf(toolspec.CodePermission, "refused by the guard rule %q: %s", rule, fmt.Sprintf(format, args...)).
		WithRemediation("Try another approach, or report that the operator's guard policy does not allow it.")
	e.Rule = rule
	return e
}

// execTimeout returns the default timeout of a command. It is at most the policy's limit. Zero means
// session.DefaultExecTimeout.
func (s *Server) execTimeout() frontmatter.Duration {
	bound := frontmatter.Duration(s.policy.Limits.ExecTimeout)
	own := s.opts.Sandbox.WithDefaults().Limits.ExecTimeout
	if bound > 0 && bound < cmp.Or(own, frontmatter.Duration(sandbox.DefaultExecTimeout)) {
		return bound
	}
	return own
}

// ceiling returns the policy's limits for a sandbox.
func (s *Server) ceiling() backend.Limits {
	c := s.policy.Limits.Ceiling()
	if s.manager.Backend().Capabilities().Workspace == "" {
		c.WorkspaceBytes = 0
	}
	return c
}

// checker returns the check before each tool call of a scope.
func (s *Server) checker(sc *scope) func(context.Context, toolspec.Args) *toolspec.Error {
	return func(_ context.Context, args toolspec.Args) *toolspec.Error {
		fail := cmp.Or(sc.checkHandle(args), s.checkTime(args), s.checkSize("code", int64(len(args.Code))))
		for _, name := range slices.Sorted(maps.Keys(args.Files)) {
			fail = cmp.Or(fail, s.checkFile(name, args.Files[name]))
		}
		return cmp.Or(fail, s.checkCommands(args))
	}
}

// commands returns the commands of a call.
func (s *Server) commands(args toolspec.Args) commands {
	runtime := cmp.Or(frontmatter.Runtime(args.Runtime), s.opts.Sandbox.Runtime)
	switch {
	case args.Line != "":
		return commandsIn(args.Line)
	case len(args.Argv) > 0 && args.StdinOpen: // more input may follow
		return commandsOf(args.Argv, nil)
	case len(args.Argv) > 0:
		return commandsOf(args.Argv, args.Stdin)
	case args.Code != "" && runtime == frontmatter.RuntimeBash:
		return commandsIn(args.Code)
	}
	return commands{}
}

// checkHandle requires calls to specify their sandbox if several conversations share the scope. Each sandbox_open then
// opens a new sandbox.
func (sc *scope) checkHandle(args toolspec.Args) *toolspec.Error {
	switch {
	case !sc.handles:
	case args.SessionKey != nil && *args.SessionKey == "":
		*args.SessionKey = "handle-" + record.NewID()
	case args.SessionKey != nil && !sc.named:
		return toolspec.Failf(toolspec.CodeInvalid,
			"session_key requires a client with a token or a session, because any client could use the name").
			WithRemediation("Omit session_key and keep the sandbox_id.")
	case args.SessionKey == nil && args.SandboxID != nil && *args.SandboxID == "":
		return toolspec.Failf(toolspec.CodeInvalid, "sandbox_id is required").
			WithRemediation("Call sandbox_open and pass its sandbox_id with every call.")
	}
	return nil
}

// checkFile checks a file of a file tool, a resource, or get_files against the rules.
func (s *Server) checkFile(name string, size int64) *toolspec.Error {
	if rule := s.policy.fileRule(name); rule != "" {
		return refusedBy(rule, "the file tools do not support files of this type")
	}
	return s.checkSize(name, size)
}

func (s *Server) checkSize(name string, size int64) *toolspec.Error {
	if bound := s.policy.Limits.FileMB << 20; bound > 0 && size > bound {
		e := refusedBy("limits.file_mb", "%q has %d bytes, the limit is %d MiB",
			sanitize.Clip(name), size, s.policy.Limits.FileMB)
		e.Code = toolspec.CodeTooLarge
		return e
	}
	return nil
}

func (s *Server) checkTime(args toolspec.Args) *toolspec.Error {
	bound, seconds := int64(s.policy.Limits.ExecTimeout/time.Second), args.TimeoutSeconds
	switch {
	case bound == 0 || seconds == nil:
	case *seconds > bound:
		e := refusedBy("limits.exec_timeout", "timeout_seconds is %d, the limit is %d", *seconds, bound)
		e.Remediation = fmt.Sprintf("Pass a timeout_seconds of at most %d, or divide the work.", bound)
		return e
	case *seconds == 0 && args.Code != "":
		*seconds = int64(cmp.Or(time.Duration(s.execTimeout()), sandbox.DefaultExecTimeout).Seconds())
	}
	return nil
}

// checkCommands checks commands against the rules. Without rules, it does not parse the commands.
func (s *Server) checkCommands(args toolspec.Args) *toolspec.Error {
	rules := &s.policy.Commands
	if len(rules.Refuse) == 0 && len(rules.Allow) == 0 {
		return nil
	}
	found := s.commands(args)
	for _, cmd := range found.list {
		for i := range rules.Refuse {
			if r := &rules.Refuse[i]; r.matches(cmd) {
				if r.Reason != "" {
					return refusedBy(r.Name, "%s", r.Reason)
				}
				return refusedBy(r.Name, "the command %q is not allowed", sanitize.Clip(cmd[0].text))
			}
		}
	}
	if found.unknown != "" && (len(rules.Allow) > 0 || !rules.AllowDynamic) {
		return refusedBy("commands.allow_dynamic", "%s", found.unknown)
	}
	for _, cmd := range found.list {
		if !rules.allows(cmd) {
			return refusedBy("commands.allow", "the command %q is not in the list of allowed commands",
				sanitize.Clip(cmd[0].text))
		}
	}
	return nil
}

// allows reports whether the allow list contains the command. It returns true if there is no allow list.
func (r *CommandRules) allows(cmd []word) bool {
	return len(r.Allow) == 0 || harmless(cmd[0].text) ||
		slices.ContainsFunc(r.Allow, func(rule CommandRule) bool { return rule.matches(cmd) })
}
