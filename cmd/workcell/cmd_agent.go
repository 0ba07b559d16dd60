package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

func newAgentCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "agent",
		Aliases: []string{"agents"},
		Short:   "Run an agent on its own",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAgentRunCmd(a))
	return cmd
}

type agentRunOptions struct {
	engine    engineFlags
	images    imageFlags
	models    modelFlags
	out       outputFlag
	inputFile string
	workspace string
	keep      bool
}

func newAgentRunCmd(a *app) *cobra.Command {
	o := &agentRunOptions{}
	cmd := &cobra.Command{
		Use:   "run FILE.prompt [INPUT…] [flags]",
		Short: "Run an agent and print its answer",
		Long: `Run an agent and print its answer. INPUT is NAME=VALUE (NAME=@FILE reads the value from a file), or one text for an
agent that takes one: its only field, or the one named input or task.`,
		Example: "  workcell agent run examples/agents/python-developer.prompt 'print the first 20 primes'\n" +
			"  workcell agent run examples/agents/data-analyst.prompt question='Which region sold most?' csv=@sales.csv",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), a, args[0], args[1:]) },
	}
	o.engine.addTo(cmd)
	o.images.addTo(cmd)
	o.models.addTo(cmd)
	o.out.addTo(cmd)
	f := cmd.Flags()
	f.StringVar(&o.inputFile, "input-file", "", "JSON or YAML file with the whole input, - for standard input; INPUT goes over it")
	f.StringVar(&o.workspace, "workspace", "", "directory to copy into the agent's sandboxes")
	f.BoolVar(&o.keep, "keep", false, "leave the run's sandboxes for workcell sessions exec and rm")
	return cmd
}

// agentOutput is what `agent run` prints.
type agentOutput struct {
	Agent        string `json:"agent"`
	RunID        string `json:"run_id"`
	Model        string `json:"model"`
	Text         string `json:"text"`
	Output       any    `json:"output,omitempty"`
	Turns        int    `json:"turns"`
	ToolCalls    int    `json:"tool_calls"`
	InputTokens  int    `json:"input_tokens"`
	OutputTokens int    `json:"output_tokens"`
}

func (o *agentRunOptions) run(ctx context.Context, a *app, path string, args []string) error {
	if !strings.HasSuffix(path, agentExt) {
		return usageError(fmt.Errorf("%s is not an agent", path), "agents end in "+agentExt+"; workflows are for `workcell run`")
	}
	if _, err := os.Stat(path); err != nil {
		return fail(exitInvalid, err, "")
	}
	name := strings.TrimSuffix(filepath.Base(path), agentExt)
	return a.withHost(ctx, o.engine, o.images, o.models, map[string]string{name: path},
		func(ctx context.Context, h *host, m *session.Manager, p *progress) error {
			input, err := o.input(a.stdin, h.agents[name], args)
			if err != nil {
				return err
			}
			if err := h.agents[name].CheckInput(input); err != nil {
				return fail(exitInvalid, err, "pass NAME=VALUE or --input-file FILE")
			}
			return o.execute(ctx, a, h, m, p, name, input)
		})
}

// execute runs the agent in a run of its own, so that its id is known and its sandboxes can be kept.
func (o *agentRunOptions) execute(ctx context.Context, a *app, h *host, m *session.Manager, p *progress, name string, input map[string]any) (err error) {
	h.onTool = (&runProgress{p: p}).tool
	run := session.Run{Namespace: session.NamespaceAgent, ID: session.NewRunID()}
	base := session.Request{OnPull: p.Pull}
	if o.keep {
		base.Retention = keepFor
	}
	if o.workspace != "" {
		if base, err = workflow.CopyWorkspace(ctx, base, o.workspace); err != nil {
			return fail(exitInvalid, err, "--workspace names the directory to copy")
		}
		reportSkipped(ctx, a.stderr, o.workspace)
	}
	ctx = session.WithBase(session.WithRun(ctx, run), base)
	p.Line("run %s of agent %s", run.ID, name)
	p.Status("agent " + name)
	res, err := h.run(ctx, name, input)
	p.Status("")
	// The end of the manager leaves what the run's own end keeps, and nothing else.
	err = errors.Join(err, m.CloseScope(context.WithoutCancel(ctx), run.Scope()))
	if o.keep {
		tellKept(ctx, m, p, run.ID)
	}
	if err != nil {
		return runError(err)
	}
	out := agentOutput{
		Agent: name, RunID: run.ID, Model: res.Model, Text: res.Text, Output: res.Output, Turns: res.Turns,
		ToolCalls: res.ToolCalls, InputTokens: res.InputTokens, OutputTokens: res.OutputTokens,
	}
	return o.out.write(a.stdout, out, func(w io.Writer) error {
		if res.Output != nil {
			return writeSafe(w, res.Output)
		}
		return writeSafe(w, res.Text)
	})
}

// input returns the agent's input from the arguments, by the agent's own schema.
func (o *agentRunOptions) input(stdin io.Reader, agent *tools.Agent, args []string) (map[string]any, error) {
	input := map[string]any{}
	if o.inputFile != "" {
		var err error
		if input, err = readInputFile(stdin, o.inputFile); err != nil {
			return nil, err
		}
	}
	fields := inputFields(agent.InputSchema())
	args, text := splitArgs(args, fields)
	pairs, err := parsePairs(args)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		if err := knownInput(name, fields); err != nil {
			known := strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
			return nil, fail(exitInvalid, err, fmt.Sprintf("the agent has %s; a text that begins with %q is written FIELD=%[2]s…", known, name+"="))
		}
	}
	if text != "" {
		field, err := textField(fields)
		if err != nil {
			return nil, err
		}
		if _, twice := pairs[field]; twice {
			return nil, usageError(fmt.Errorf("input %s is given twice", field), "put quotes around a value with blanks: "+field+"='…'")
		}
		pairs[field] = text
	}
	for name, value := range pairs {
		if input[name], err = typedValue(name, fields[name], value); err != nil {
			return nil, fail(exitInvalid, err, "")
		}
	}
	return input, nil
}

// inputFields returns the properties of an input schema with their types.
func inputFields(schema map[string]any) map[string]string {
	fields := map[string]string{}
	properties, _ := schema["properties"].(map[string]any)
	for name, p := range properties {
		property, _ := p.(map[string]any)
		fields[name] = schemaType(property["type"])
	}
	return fields
}

// schemaType returns the type of a property, which dotprompt writes as [type, null] when the field is optional.
func schemaType(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		for _, t := range v {
			if s, ok := t.(string); ok && s != "null" {
				return s
			}
		}
	case []string:
		for _, s := range v {
			if s != "null" {
				return s
			}
		}
	}
	return ""
}

// splitArgs separates NAME=VALUE, where NAME is a field or could be one, from text; several words without quotes are one
// text.
func splitArgs(args []string, fields map[string]string) (pairs []string, text string) {
	var words []string
	for _, arg := range args {
		name, _, ok := strings.Cut(arg, "=")
		_, known := fields[name]
		if ok && (known || expr.IsIdent(name)) {
			pairs = append(pairs, arg)
		} else {
			words = append(words, arg)
		}
	}
	return pairs, strings.Join(words, " ")
}

// knownInput refuses a name that the fields of an agent do not have. A schema may allow others, but nothing in the
// agent's file then speaks of them.
func knownInput(name string, fields map[string]string) error {
	if _, known := fields[name]; known || len(fields) == 0 {
		return nil
	}
	return fmt.Errorf("there is no input %s%s", clip(name, 60), meant(name, slices.Sorted(maps.Keys(fields))))
}

// meant names the word that somebody probably meant, else all there are.
func meant(word string, known []string) string {
	if near, ok := suggest.Closest(word, known); ok {
		return fmt.Sprintf(", did you mean %s?", near)
	}
	return ", known are " + strings.Join(known, ", ")
}

// textField is the field that a bare text is for.
func textField(fields map[string]string) (string, error) {
	names := slices.Sorted(maps.Keys(fields))
	for _, name := range []string{"input", "task"} {
		if slices.Contains(names, name) || len(names) == 0 {
			return name, nil
		}
	}
	if len(names) == 1 {
		return names[0], nil
	}
	return "", usageError(errors.New("the agent has no field for a bare text"), "use NAME=VALUE with "+strings.Join(names, ", "))
}

// typedValue reads the value of an input as JSON where its field wants something else than text.
func typedValue(name, want, text string) (any, error) {
	if want == "string" || want == "" {
		return text, nil
	}
	v, err := expr.DecodeJSON([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("input %s: %q is not a JSON value of type %s", name, clip(text, 60), want)
	}
	return v, nil
}
