package admincmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/tools"
)

// maxToolArgs is the maximum size of the arguments of `tools call` on standard input.
const maxToolArgs = 16 << 20

// Output formats of `tools show`.
const asPython, asJSON = "py", "json"

// toolsOptions are the shared options of the tools commands.
type toolsOptions struct {
	*command
	agent string // agent's file, whose rules apply; if empty, every tool is allowed
}

func newToolsCmd(a *command) *cobra.Command {
	o := &toolsOptions{command: a}
	verb := func(cmd *cobra.Command) *cobra.Command {
		a.Verb(cli.HostToolFlags, cmd)
		cmd.Flags().StringVar(&o.agent, "agent", "",
			"`FILE.prompt`: agent whose host_tools apply (default: all tools are allowed)")
		return cmd
	}
	as := asPython
	show := verb(&cobra.Command{
		Use: "show SERVER.TOOL", Short: "Show the input and output of a tool", Args: cobra.ExactArgs(1),
		Example: "  workcell tools show orders.lookup --as json --host-tools host-tools.yaml",
		RunE:    func(cmd *cobra.Command, args []string) error { return o.show(cmd.Context(), args[0], as) },
	})
	show.Flags().Var(cli.OneOf(&as, asPython, asJSON), "as", "format of the declaration")
	return cli.Subcommands(&cobra.Command{
		Use: "tools", Short: "Inspect and call host tools",
		Long: `Inspect and call host tools: MCP tools that code in sandboxes can call through the host. The file in
--host-tools lists their MCP servers. In an agent's file, host_tools selects the tools that the agent may call.`,
	},
		verb(a.Verb(cli.OutputFlags, &cobra.Command{
			Use: "ls [SERVER]", Short: "List host tools and their access rules", Args: cobra.MaximumNArgs(1),
			Example: "  workcell tools ls --host-tools examples/host-tools.yaml --agent examples/agents/order-desk.prompt",
			RunE:    func(cmd *cobra.Command, args []string) error { return o.list(cmd.Context(), strings.Join(args, "")) },
		})),
		show,
		verb(&cobra.Command{
			Use: "call SERVER.TOOL [JSON|-]", Short: "Call a tool as code in a sandbox would", Args: cobra.RangeArgs(1, 2),
			Long: `Call a tool the way code in a sandbox would, with the same checks, conditions, and limits. Only the user at
the terminal can approve the call. The result is printed to standard output.`,
			Example: `  workcell tools call orders.lookup '{"id": "42"}' --host-tools host-tools.yaml`,
			RunE: func(cmd *cobra.Command, args []string) error {
				return o.call(cmd.Context(), args[0], strings.Join(args[1:], ""))
			},
		}),
	)
}

// use runs fn with the tools allowed for the agent. Without an agent, these are all tools of the servers matching
// name, or of all servers if name is empty.
func (o *toolsOptions) use(
	ctx context.Context, name string, approver hosttools.Approver, fn func(*hosttools.Set) error,
) (err error) {
	r, err := o.OpenHostTools(ctx, false)
	if err != nil {
		return err
	}
	if r == nil {
		return app.UsageError(errors.New("no host tools file specified"), "pass --host-tools FILE")
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	grant := hosttools.Grant{Approver: approver}
	if o.agent != "" {
		grant.Caller.Agent = strings.TrimSuffix(filepath.Base(o.agent), ".prompt")
		grant.Rules, err = o.agentRules(ctx, r)
	} else {
		grant.Rules, err = o.allRules(ctx, r, name)
	}
	if err != nil {
		return err
	}
	set, err := r.Set(ctx, grant)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close(ctx)) }()
	return fn(set)
}

// agentRules returns the rules of the agent.
func (o *toolsOptions) agentRules(ctx context.Context, r *hosttools.Registry) (hosttools.Rules, error) {
	doc, err := tools.CheckAgent(o.agent)
	if err == nil && (doc.Sandbox == nil || doc.Sandbox.HostTools == nil) {
		err = fmt.Errorf("%s has no host_tools", o.agent)
	}
	if err == nil {
		err = app.HostToolProblems(ctx, r, doc)
	}
	if err != nil {
		return hosttools.Rules{}, app.Fail(app.ExitInvalid, err, "")
	}
	return *doc.Sandbox.HostTools, nil
}

// allRules returns rules allowing every tool of the available servers matching name.
func (o *toolsOptions) allRules(ctx context.Context, r *hosttools.Registry, name string) (hosttools.Rules, error) {
	var rules hosttools.Rules
	var errs []error
	servers := slices.DeleteFunc(r.Servers(), func(server string) bool {
		return name != "" && name != server &&
			!strings.HasPrefix(name, server+".") && !strings.HasPrefix(name, server+"_")
	})
	if len(servers) == 0 {
		return rules, app.Fail(app.ExitNotFound, fmt.Errorf("%q is not a server or a tool", name),
			suggest.Hint(name, r.Servers()))
	}
	for _, server := range servers {
		all := hosttools.Rule{Tool: server + ".*"}
		if _, err := r.Check(ctx, hosttools.Rules{Allow: []hosttools.Rule{all}}); err != nil {
			errs = append(errs, err)
			continue
		}
		rules.Allow = append(rules.Allow, all)
	}
	if len(rules.Allow) == 0 {
		return rules, errors.Join(errs...)
	}
	for _, err := range errs {
		o.Notice("warning: %v", err)
	}
	return rules, nil
}

// toolRow is a tool in a list.
type toolRow struct {
	Tool        string `json:"tool"`
	Decision    string `json:"decision"`
	MaxCalls    int64  `json:"max_calls,omitempty"`
	Description string `json:"description"`
}

// list prints the tools of a server, or the tool with a name, or all tools if name is empty.
func (o *toolsOptions) list(ctx context.Context, name string) error {
	return o.use(ctx, name, nil, func(set *hosttools.Set) error {
		rows := []toolRow{}
		for _, e := range set.Entries() {
			if name == "" || e.Tool.Server == name || hasName(e.Tool, name) {
				rows = append(rows, toolRow{e.Tool.FullName(), e.Decision, e.MaxCalls, e.Tool.Description})
			}
		}
		if name != "" && len(rows) == 0 {
			_, err := named(set, name)
			return err
		}
		return cli.PrintList(o.Command, rows, []string{"TOOL", "DECISION", "DESCRIPTION"}, func(r toolRow) []string {
			return []string{r.Tool, r.Decision, sanitize.Cut(r.Description, 80)}
		})
	})
}

// hasName reports whether name is one of the two names of a tool.
func hasName(t hosttools.Tool, name string) bool { return t.FullName() == name || t.MCPName() == name }

// named returns the tool of a set by either name.
func named(set *hosttools.Set, name string) (hosttools.Tool, error) {
	var known []string
	for _, t := range set.Tools() {
		if hasName(t, name) {
			return t, nil
		}
		known = append(known, t.FullName())
	}
	todo := cmp.Or(suggest.Hint(name, known), "run `workcell tools ls` to list tools")
	return hosttools.Tool{}, app.Fail(app.ExitNotFound, fmt.Errorf("tool %q not found", name), todo)
}

func (o *toolsOptions) show(ctx context.Context, name, as string) error {
	return o.use(ctx, name, nil, func(set *hosttools.Set) error {
		t, err := named(set, name)
		if err != nil {
			return err
		}
		text := t.Python()
		if as == asJSON {
			text = t.JSON()
		}
		_, err = fmt.Fprintln(o.Contents(), strings.TrimRight(text, "\n"))
		return err
	})
}

func (o *toolsOptions) call(ctx context.Context, name, args string) error {
	if args == "-" {
		text, err := o.ReadStdin(ctx, maxToolArgs)
		if err != nil {
			return err
		}
		args = string(text)
	}
	p := o.Progress()
	defer p.Close()
	return o.use(ctx, name, p.Approver(), func(set *hosttools.Set) error {
		if _, err := named(set, name); err != nil {
			return err
		}
		reply := set.Access(hosttools.Command{}).Call(ctx, "", trace.SpanContext{},
			hosttools.Request{Tool: name, Args: json.RawMessage(cmp.Or(args, "{}"))})
		if reply.Error != nil {
			code := cmp.Or(toolExits[reply.Error.Code], app.ExitFailed)
			return app.Fail(code, reply.Error, reply.Error.Remediation)
		}
		text := cmp.Or(string(reply.Data), reply.Text)
		_, err := fmt.Fprintln(o.Contents(), strings.TrimRight(text, "\n"))
		return err
	})
}

// toolExits are the exit codes of failed calls. For other failures, it is app.ExitFailed.
var toolExits = map[toolspec.Code]int{
	toolspec.CodeInvalid: app.ExitInvalid, toolspec.CodeTooLarge: app.ExitInvalid,
	toolspec.CodeUnavailable: app.ExitUnavailable,
}
