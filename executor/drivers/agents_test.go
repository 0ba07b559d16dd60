package drivers_test

import (
	"context"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
)

// TestOf verifies the driver of each command. An agent that uses a protocol is recognized by its program, and an
// unknown program has no image.
func TestOf(t *testing.T) {
	for name, test := range map[string]struct {
		agent    drivers.Agent
		driver   string
		program  string
		settings bool
		like     bool
	}{
		"claude":      {drivers.Of("claude", nil, ""), "claude", "claude", false, false},
		"opencode":    {drivers.Of("opencode", nil, ""), "opencode", "opencode", false, false},
		"acp":         {drivers.Of("acp", []string{"/usr/local/bin/gemini", "--acp"}, ""), "acp", "gemini", true, false},
		"acp, other":  {drivers.Of("acp", []string{"goose", "acp"}, ""), "acp", "", false, false},
		"custom":      {drivers.Of("custom", []string{"claude"}, "text"), "custom", "", false, false},
		"custom like": {drivers.Of("custom", []string{"x"}, "codex"), "custom", "", false, true},
	} {
		a := test.agent
		if a.Driver.Name() != test.driver || a.Name != test.program || (a.Image == "") != (test.program == "") || (a.Version == "") != (test.program == "") {
			t.Errorf("%s: %+v", name, a)
		}
		if d, ok := a.Driver.(drivers.ACP); ok && (d.Settings != nil) != test.settings {
			t.Errorf("%s: %+v", name, d)
		}
		if d, ok := a.Driver.(drivers.Custom); ok && (d.Like != nil) != test.like {
			t.Errorf("%s: %+v", name, d)
		}
	}
	for line, want := range map[string]string{
		"opencode acp":                      "opencode",
		"env A=b opencode acp":              "opencode",
		"npx -y @google/gemini-cli@1 --acp": "gemini",
		"npm exec -- opencode-ai acp":       "opencode",
		"node --no-warnings /usr/lib/node_modules/@google/gemini-cli/bundle/index.js --acp": "gemini",
		"bun /opt/gemini.js":                          "gemini",
		"npx @agentclientprotocol/claude-agent-acp@1": "claude",
		"/opt/bin/claude-code-acp":                    "claude",
		"codex-acp":                                   "codex",
		"node agent.js --provider gemini":             "",
		"goose --mode=acp gemini":                     "",
		"python3 agent.py --log=debug codex-acp":      "",
		"/opt/gemini/agent":                           "",
		"claude --acp":                                "",
	} {
		d := drivers.Of("acp", strings.Fields(line), "").Driver.(drivers.ACP)
		if got := d.Settings; (got == nil) != (want == "") || got != nil && got.Name() != want {
			t.Errorf("%s: settings of %v, want %q", line, got, want)
		}
	}
	if a := drivers.Of("nobody", nil, ""); a.Driver != nil {
		t.Errorf("%+v", a)
	}
}

// TestVersions verifies that an image with another version causes one warning, and that a failed check is repeated.
func TestVersions(t *testing.T) {
	t.Parallel()
	b, err := memory.New(nil)
	checktest.Must(t, err)
	b.On("claude --version", memory.Answer{Stdout: "v1.2.3 (Claude Code)\n"})
	m, err := session.NewManager(b, nil)
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, m.Close(context.Background())) })
	s, _, err := m.Open(t.Context(), session.UserKey("x"), session.Request{Image: "other"})
	checktest.Must(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var v drivers.Versions
	for i, ctx := range []context.Context{ended, t.Context(), t.Context()} {
		got := v.Differs(ctx, s, drivers.Of("claude", nil, ""))
		if (got != "") != (i == 1) || i == 1 && !strings.HasPrefix(got, "claude has version 1.2.3; ") {
			t.Errorf("call %d: %q", i, got)
		}
	}
}
