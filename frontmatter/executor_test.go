package frontmatter_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
)

func TestExecutorShortForm(t *testing.T) {
	t.Parallel()
	want := &frontmatter.Sandbox{Mode: frontmatter.ModeExecutor, Executor: &frontmatter.Executor{Command: "claude", Args: map[string]string{"effort": "high"}}}
	for _, src := range []string{
		"{command: claude, arguments: {effort: high}}",
		"{mode: executor, executor: {command: claude, args: {effort: high}}}",
	} {
		doc, err := frontmatter.Parse("x.prompt", []byte("---\nsandbox: "+src+"\n---\nx"))
		checktest.Must(t, err)
		if diff := cmp.Diff(want, doc.Sandbox); diff != "" {
			t.Errorf("%s (-want +got):\n%s", src, diff)
		}
	}
}

func TestExecutorsThatAreWrong(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		"{mode: executor}":                                                            "x.prompt:2:17: mode executor requires an executor; add one, for example executor: {command: claude}",
		"{mode: code, executor: claude}":                                              "x.prompt:2:33: executor requires mode executor; add mode: executor, or remove it",
		"{mode: executor, executor: {}}":                                              "x.prompt:2:37: executor has no command; use one of claude, codex, gemini, opencode, acp, custom",
		"{command: cluade}":                                                           `x.prompt:2:10: unknown executor.command "cluade"; did you mean "claude"?`,
		"{command: claude, executor: codex}":                                          "x.prompt:2:20: command and executor set the same value; remove command",
		"{command: claude, runtime: python}":                                          "x.prompt:2:37: runtime cannot be used in mode executor, which uses the coding agent's image; remove it, or set image",
		"{command: claude, yield_ms: 5}":                                              "x.prompt:2:38: yield_ms requires code mode; in mode executor every call waits for the command; add mode: code, or remove it",
		"{mode: executor, executor: {command: claude, budget: {usd: -1}}}":            "x.prompt:2:69: executor.budget.usd must be above 0 and at most 100000, not -1",
		"{mode: executor, executor: {command: claude, resume: always, max_turns: 0}}": "x.prompt:2:63: unknown executor.resume \"always\"; available: never, step, session\nx.prompt:2:82: sandbox.executor.max_turns is 0; remove it to use the default",
	} {
		_, err := frontmatter.Parse("x.prompt", []byte("---\nsandbox: "+src+"\n---\nx"))
		if err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant\n%s", src, err, want)
		}
	}
}
