package workflow_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/workflow"
)

// agentFiles returns agents by name, each with the specified value of its `sandbox:`.
func agentFiles(sandboxes map[string]string) func(string) (*frontmatter.Document, error) {
	return func(name string) (*frontmatter.Document, error) {
		return frontmatter.Parse(name+".prompt", []byte(fmt.Sprintf("---\nmodel: x/y\nsandbox: %s\n---\nWork.", sandboxes[name])))
	}
}

// TestAgentsThatShareASandbox verifies that agents that share a sandbox must not request different configurations,
// because the second agent could not run a command.
func TestAgentsThatShareASandbox(t *testing.T) {
	t.Parallel()
	agents := agentFiles(map[string]string{
		"small": "{mode: code, limits: {memory_mb: 256}}",
		"large": "{mode: code, limits: {memory_mb: 1024}}",
		"py":    "{mode: code, runtime: python}",
		"js":    "{mode: code, runtime: node}",
		"any":   "{mode: code}",
		"vault": "{mode: code, session: vault, limits: {memory_mb: 512}}",
		"alone": "{mode: code, session: isolated, limits: {memory_mb: 2048}}",
		"runs":  "{limits: {memory_mb: 4096}}",
		"open":  "{mode: code, network: {enabled: true}}",
		"coder": "{mode: executor, executor: {command: claude}}",
		"hosts": "{network: {allow: [example.org]}}",
		"guest": "{mode: code, user: \"2000\"}",
		"shut":  "{mode: code, network: {enabled: false}}",
	})
	const head = "id: w\n"
	const command = "  - {id: c, type: exec, command: ls}\n"
	step := func(id, agent, more string) string {
		return fmt.Sprintf("  - {id: %s, type: agent, agent: %s%s}\n", id, agent, more)
	}
	for name, test := range map[string]struct{ src, want string }{
		"limits": {
			head + "steps:\n" + step("a", "small", "") + step("b", "any", "") + step("c", "large", ""),
			"w.yaml:5:10: agents small and large share the sandbox default but request different limits; " +
				"use the same settings for both, or give one of them another sandbox with `sandbox:` in its step: small.prompt:3, large.prompt:3",
		},
		"runtime":                 {head + "steps:\n" + step("a", "py", "") + step("b", "js", ""), "w.yaml:4:10: agents py and js share the sandbox default but request different image;"},
		"network":                 {head + "sandbox: {network: {enabled: true}}\nsteps:\n" + step("a", "open", "") + step("b", "shut", ""), "request different network;"},
		"the workflow's image":    {head + "sandbox: {image: \"debian:12\"}\nsteps:\n" + step("a", "py", "") + step("b", "js", ""), ""},
		"another sandbox":         {head + "steps:\n" + step("a", "small", "") + step("b", "large", ", sandbox: other"), ""},
		"isolated step":           {head + "steps:\n" + step("a", "small", "") + step("b", "large", ", sandbox: isolated"), ""},
		"a separate sandbox":      {head + "steps:\n" + step("a", "small", "") + step("b", "alone", "") + step("c", "runs", ""), ""},
		"a named one":             {head + "steps:\n" + step("a", "vault", "") + step("b", "large", ", sandbox: vault"), "share the sandbox vault but"},
		"the same agent twice":    {head + "steps:\n" + step("a", "small", "") + step("b", "small", ""), ""},
		"a branch":                {head + "steps:\n" + step("a", "small", "") + "  - {id: p, type: parallel, branches: [{id: x, steps: [{id: b, type: agent, agent: large}]}]}\n", "share the sandbox default but"},
		"an isolated branch":      {head + "steps:\n" + step("a", "small", "") + "  - {id: p, type: parallel, branches: [{id: x, sandbox: isolated, steps: [{id: b, type: agent, agent: large}]}]}\n", ""},
		"within isolated items":   {head + "steps:\n  - {id: p, type: for_each, items: [1], sandbox: isolated, steps: [{id: a, type: agent, agent: small}, {id: b, type: agent, agent: large}]}\n", "share the isolated sandbox of step p but"},
		"a command first":         {head + "sandbox: {runtime: bash, limits: {memory_mb: 512}}\nsteps:\n" + command + step("a", "small", "") + step("b", "py", ""), "w.yaml:5:10: agent small requests different limits than the sandbox default has, which the command of step c opens first; use the same settings in the workflow, or give one of the steps another sandbox with `sandbox:`: small.prompt:3\nw.yaml:6:10: agent py requests different image than"},
		"a command, no network":   {head + "sandbox: {runtime: python, network: {enabled: true}}\nsteps:\n" + command + step("a", "shut", ""), "agent shut requests different network than the sandbox default has"},
		"a command, no defaults":  {head + "sandbox: {runtime: python}\nsteps:\n" + command + step("a", "small", "") + step("b", "py", ""), ""},
		"a command, other user":   {head + "sandbox: {runtime: python}\nsteps:\n" + command + step("a", "small", "") + step("b", "guest", ""), "agent guest requests different user than"},
		"a command, maybe":        {head + "sandbox: {runtime: bash}\nsteps:\n" + strings.Replace(command, "exec,", "exec, if: \"true\",", 1) + step("a", "py", ""), ""},
		"a command, later":        {head + "sandbox: {runtime: bash}\nstart: a\nsteps:\n" + command + step("a", "py", ", next: c"), ""},
		"a command for each":      {head + "sandbox: {runtime: bash}\nsteps:\n  - {id: p, type: for_each, items: [], steps: [{id: c, type: exec, command: ls}]}\n" + step("a", "py", ""), ""},
		"coding agents":           {head + "sandbox: {runtime: bash}\nsteps:\n" + command + step("a", "coder", "") + step("b", "small", ""), ""},
		"a command elsewhere":     {head + "sandbox: {runtime: bash}\nsteps:\n" + strings.Replace(command, "ls", "ls, sandbox: other", 1) + step("a", "py", ""), ""},
		"a name in forked items":  {head + "steps:\n  - {id: p, type: for_each, items: [1], fork: true, steps: [{id: a, type: agent, agent: vault}, {id: b, type: agent, agent: large}]}\n", "share the sandbox default but"},
		"a ban of the network":    {head + "sandbox: {network: {enabled: false}}\nsteps:\n" + step("a", "open", ", sandbox: isolated") + step("b", "hosts", "") + step("c", "shut", ""), "w.yaml:4:10: agent open requires network access, which the workflow forbids (network: {enabled: false}); remove network: from one of the two: open.prompt:3\nw.yaml:5:10: agent hosts requires"},
		"a list of the workflow":  {head + "sandbox: {network: {allow: [example.org]}}\nsteps:\n" + step("a", "open", ""), ""},
		"only one names anything": {head + "steps:\n" + step("a", "any", "") + step("b", "large", ""), ""},
	} {
		_, err := workflow.Parse("w.yaml", []byte(test.src), &workflow.LoadOptions{Agents: agents})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestCheck verifies that the workflow from Check can be used to find more problems.
func TestCheck(t *testing.T) {
	t.Parallel()
	wf, err := workflow.Check("testdata/bad/rounds.yaml", nil)
	if err == nil || wf == nil || wf.Workspace().Dir != "" || wf.AsRoot() != nil {
		t.Errorf("Check = %v, %v", wf, err)
	}
	wf, err = workflow.Check("testdata/good/spec.yaml", nil)
	if err != nil || cmp.Diff("code-review-and-fix", wf.ID) != "" {
		t.Errorf("Check = %v, %v", wf, err)
	}
}
