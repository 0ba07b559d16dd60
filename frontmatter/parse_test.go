package frontmatter_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
)

func TestParse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		yaml string
		want *frontmatter.Sandbox
	}{
		{"none", "model: m/x\n", nil},
		{"short python", "sandbox: python\n", &frontmatter.Sandbox{Runtime: "python"}},
		{"short node", "sandbox: node\n", &frontmatter.Sandbox{Runtime: "node"}},
		{"quoted key", "\"sandbox\": bash\n", &frontmatter.Sandbox{Runtime: "bash"}},
		{"core tag", "sandbox: !!str bash\n", &frontmatter.Sandbox{Runtime: "bash"}},
		{"empty mapping", "sandbox: {}\n", &frontmatter.Sandbox{}},
		{"full", `sandbox:
  mode: code
  runtime: python               # comment
  image: "python:3.11-slim"
  session: default
  user: "1000:1000"
  root: readonly
  env: {LANG: C.UTF-8, PORT: 8080, EMPTY: "", ON: yes, RATE: 1.10, HOME: "${HOME}"}
  limits:
    cpu_millicores: 1000
    memory_mb: 2048
    pids: 256
    idle_timeout: 15m
    exec_timeout: 120s
    workspace_mb: 500
  network: {enabled: false}
`, &frontmatter.Sandbox{
			Mode: "code", Runtime: "python", Image: "python:3.11-slim", Session: "default", User: "1000:1000", Root: "readonly",
			Env:     map[string]string{"LANG": "C.UTF-8", "PORT": "8080", "EMPTY": "", "ON": "yes", "RATE": "1.10", "HOME": "${HOME}"},
			Limits:  frontmatter.Limits{CPUMillicores: 1000, MemoryMB: 2048, PIDs: 256, IdleTimeout: frontmatter.Duration(15 * time.Minute), ExecTimeout: frontmatter.Duration(2 * time.Minute), WorkspaceMB: 500},
			Network: frontmatter.Network{Enabled: new(false)},
		}},
		{"times in seconds", "sandbox: {mode: code, limits: {timeout_seconds: 900, exec_timeout_seconds: 120}}\n",
			&frontmatter.Sandbox{Mode: "code", Limits: frontmatter.Limits{TimeoutSeconds: 900, ExecTimeoutSeconds: 120}}},
		{"user unquoted", "sandbox: {user: 1000}\n", &frontmatter.Sandbox{User: "1000"}},
		{"user with group unquoted", "sandbox: {user: 1000:1000}\n", &frontmatter.Sandbox{User: "1000:1000"}},
		{"first generation", `sandbox:
  runtime: node
  timeout_seconds: 60
  max_stdout_bytes: 200000
  allow_network: true
  pip_packages: []
  npm_packages: [left-pad, "@scope/x@1"]
`, &frontmatter.Sandbox{
			Runtime: "node", TimeoutSeconds: 60, MaxStdoutBytes: 200000, AllowNetwork: new(true),
			PipPackages: []string{}, NpmPackages: []string{"left-pad", "@scope/x@1"},
		}},
		{"native use", "use:\n  - other\n  - name: workcell/sandbox\n    config: {mode: code, runtime: bash}\n",
			&frontmatter.Sandbox{Mode: "code", Runtime: "bash"}},
		{"native use by name", "use: [workcell/sandbox]\n", &frontmatter.Sandbox{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			doc, err := frontmatter.Parse("a.prompt", []byte("---\n"+tt.yaml+"---\nbody\n"))
			checktest.Must(t, err)
			if diff := cmp.Diff(tt.want, doc.Sandbox); diff != "" {
				t.Errorf("sandbox (-want +got):\n%s", diff)
			}
			if doc.Body != "body\n" {
				t.Errorf("body = %q", doc.Body)
			}
		})
	}
}

func TestParseMeta(t *testing.T) {
	t.Parallel()
	doc, err := frontmatter.Parse("a.prompt", []byte(`# licence line

---
name: coder
model: googleai/gemini-2.5-flash
description: Writes code
maxTurns: 12
toolChoice: required
tools: [lookup]
use: [genkit-middleware/retry, {name: x/y, config: {a: 1}}]
config: {temperature: 0.2}
common: &c {lang: go}
input:
  default: {lang: go, n: 3}
output: {format: json}
own_key: *c
---
Do {{task}}
---
not frontmatter
`))
	checktest.Must(t, err)
	want := frontmatter.Meta{
		Model: "googleai/gemini-2.5-flash", Description: "Writes code", ToolChoice: "required", MaxTurns: 12,
		Tools: []string{"lookup"}, Use: []string{"genkit-middleware/retry", "x/y"}, HasOutput: true,
		Input: map[string]any{"lang": "go", "n": 3},
	}
	if diff := cmp.Diff(want, doc.Meta); diff != "" {
		t.Errorf("meta (-want +got):\n%s", diff)
	}
	if doc.BodyLine != 18 || !strings.HasPrefix(doc.Body, "Do {{task}}\n---\n") {
		t.Errorf("body at line %d: %q", doc.BodyLine, doc.Body)
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		src  string
		want string
	}{
		{"unknown key", "---\nsandbox:\n  imagee: x\n---\n", `a.prompt:3:3: unknown key "imagee" in sandbox; did you mean "image"?`},
		{"unknown limit", "---\nsandbox:\n  limits: {memory: 5}\n---\n", `a.prompt:3:12: unknown key "memory" in sandbox.limits; did you mean "memory_mb"?`},
		{"unknown without a near one", "---\nsandbox: {colour: red}\n---\n", "available: mode, runtime"},
		{"unknown runtime", "---\nsandbox: pyton\n---\n", `a.prompt:2:10: unknown runtime "pyton"; did you mean "python"?`},
		{"mode in short form", "---\nsandbox: code\n---\n", `a.prompt:2:10: the short form takes a runtime, but "code" is a mode; write`},
		{"empty", "---\nsandbox:\nmodel: x\n---\n", "a.prompt:2:9: `sandbox:` is empty; write `sandbox: python`, or remove the key"},
		{"false", "---\nsandbox: false\n---\n", "a.prompt:2:10: `sandbox:` must be a runtime or a mapping, not false"},
		{"list", "---\nsandbox: [python]\n---\n", "a.prompt:2:10: sandbox must be a mapping, not a list"},
		{"wrong type", "---\nsandbox:\n  limits: {pids: many}\n---\n", "a.prompt:3:18: sandbox.limits.pids must be a whole number, not text"},
		{"fraction", "---\nsandbox: {limits: {cpu_millicores: 0.5}}\n---\n", "must be a whole number, not the number 0.5"},
		{"number as text", "---\nsandbox: {limits: {pids: \"5\"}}\n---\n", "sandbox.limits.pids must be a whole number, not text"},
		{"negative", "---\nsandbox:\n  limits:\n    memory_mb: -1\n---\n", "a.prompt:4:16: limits.memory_mb must be 16 to 4194304, not -1"},
		{"zero", "---\nsandbox: {limits: {pids: 0}}\n---\n", "a.prompt:2:26: sandbox.limits.pids is 0; remove it to use the default"},
		{"huge number", "---\nsandbox: {limits: {pids: 99999999999999999999}}\n---\n", "a.prompt:2:26: "},
		{"exec timeout in seconds", "---\nsandbox: {limits: {exec_timeout_seconds: 3601}}\n---\n", "must be 1 to 3600"},
		{"exec timeout", "---\nsandbox: {limits: {exec_timeout: 3601s}}\n---\n", "a.prompt:2:34: limits.exec_timeout must be 1s to 1h, not 1h0m1s"},
		{"no unit", "---\nsandbox: {limits: {idle_timeout: 900}}\n---\n", "2:34: sandbox.limits.idle_timeout must be a duration, not the number 900; add a unit, for example 900s"},
		{"neither word", "---\nsandbox: {limits: {timeout: 15m}}\n---\n", `2:20: unknown key "timeout" in sandbox.limits; did you mean "timeout_seconds"?`},
		{"idle time twice", "---\nsandbox: {limits: {timeout_seconds: 9, idle_timeout: 9s}}\n---\n", "2:37: limits.timeout_seconds and limits.idle_timeout set the same value"},
		{"null value", "---\nsandbox:\n  image:\n---\n", "a.prompt:3:9: sandbox.image is empty; set a value or remove the key"},
		{"bool", "---\nsandbox: {network: {enabled: yes}}\n---\n", "sandbox.network.enabled must be true or false, not text"},
		{"user name", "---\nsandbox: {user: root}\n---\n", `a.prompt:2:17: "root" is not a user ID; use numbers`},
		{"session name", "---\nsandbox: {mode: code, session: \"a:b\"}\n---\n", `"a:b" is not a session name`},
		{"yield in compute mode", "---\nsandbox: {yield_ms: 500}\n---\n", "yield_ms requires code mode"},
		{"snapshots in compute mode", "---\nsandbox: {snapshots: true}\n---\n", "snapshots require code mode"},
		{"snapshots by name", "---\nsandbox: {mode: code, snapshots: [one]}\n---\n", "sandbox.snapshots must be true or false"},
		{"a port in compute mode", "---\nsandbox: {ports: {web: 8080}}\n---\n", "ports require code mode"},
		{"port out of range", "---\nsandbox: {mode: code, ports: {web: 65536}}\n---\n", "ports.web must be 1 to 65535, not 65536"},
		{"port zero", "---\nsandbox: {mode: code, ports: {web: 0}}\n---\n", "sandbox.ports.web is 0"},
		{"name of a port", "---\nsandbox: {mode: code, ports: {\"../web\": 80}}\n---\n", "is not the name of a port"},
		{"list of ports", "---\nsandbox: {mode: code, ports: [8080]}\n---\n", "sandbox.ports must be a mapping, not a list"},
		{"port twice", "---\nsandbox: {mode: code, ports: {web: 80, web: 81}}\n---\n", "web"},
		{"yield", "---\nsandbox: {mode: code, yield_ms: 3600001}\n---\n", "yield_ms must be 1 to 3600000, not 3600001"},
		{"name of an isolated sandbox", "---\nsandbox: {mode: code, session: isolated.x}\n---\n", `"isolated.x" is reserved for isolated sandboxes; write session: isolated`},
		{"session in compute mode", "---\nsandbox: {session: default}\n---\n", "session requires mode code"},
		{"image", "---\nsandbox: {image: \"a b\"}\n---\n", `"a b" is not an image reference`},
		{"env name", "---\nsandbox: {env: {\"A B\": x}}\n---\n", `a.prompt:2:17: "A B" is not the name of an environment variable`},
		{"env value", "---\nsandbox: {env: {A: [x]}}\n---\n", "sandbox.env.A must be text, not a list"},
		{"env null", "---\nsandbox: {env: {A: }}\n---\n", "sandbox.env.A must be text, not null"},
		{"option for pip", "---\nsandbox:\n  mode: code\n  pip_packages: [requests, --pre]\n---\n", `a.prompt:4:28: "--pre" is not a package name; write a name with or without versions`},
		{"address for npm", "---\nsandbox:\n  npm_packages:\n    - lodash\n    - git+ssh://a/b\n---\n", `a.prompt:5:7: "git+ssh://a/b" is not a package name; write a name with or without a version`},
		{"host of a setup", "---\nsandbox: {setup: {run: [make], network: {allow: ['a/b']}}}\n---\n", `a.prompt:2:50: "a/b" is not a host`},
		{"setup without lines", "---\nsandbox: {setup: {network: {allow: [a.org]}}}\n---\n", "setup.network requires packages or commands to install"},
		{"empty line of a setup", "---\nsandbox: {setup: {run: [' ']}}\n---\n", "a.prompt:2:25: a line of setup.run is empty"},
		{"preset of the network", "---\nsandbox:\n  network:\n    allow: [pypi.org, registry:nmp]\n---\n", `a.prompt:4:23: unknown preset "registry:nmp"; did you mean "registry:npm"?`},
		{"host of the network", "---\nsandbox: {network: {allow: ['https://a.org/x']}}\n---\n", `a.prompt:2:29: "https://a.org/x" is not a host; use the host name without scheme and path`},
		{"hosts and a network", "---\nsandbox: {network: {enabled: true, allow: [a.org]}}\n---\n", "a.prompt:2:43: network.allow requires a sandbox without a network"},
		{"nothing to deny", "---\nsandbox: {network: {deny: [a.org]}}\n---\n", "a.prompt:2:27: deny requires allow"},
		{"first generation flag in code mode", "---\nsandbox:\n  mode: code\n  allow_network: false\n---\n", "a.prompt:4:18: allow_network requires compute mode; use network.enabled"},
		{"two spellings", "---\nsandbox: {allow_network: true, network: {enabled: false}}\n---\n", "allow_network and network.enabled set the same value"},
		{"declared twice", "---\nuse: [workcell/sandbox]\nsandbox: python\n---\n", "a.prompt:3:1: the sandbox is declared twice"},
		{"duplicate key", "---\nsandbox: python\nsandbox: node\n---\n", `a.prompt:3:1: duplicate key "sandbox"; the first is on line 2`},
		{"nested duplicate key", "---\nconfig:\n  a: 1\n  a: 2\n---\n", `a.prompt:4:3: duplicate key "a"`},
		{"misspelt sandbox", "---\nsandbx: python\n---\n", "a.prompt:2:1: unknown key \"sandbx\"; did you mean `sandbox:`?"},
		{"capital", "---\nSandbox: python\n---\n", "did you mean `sandbox:`?"},
		{"dotted", "---\nsandbox.mode: code\n---\n", "did you mean `sandbox:`?"},
		{"not closed", "---\nsandbox: python\nbody\n", "a.prompt:1:1: the frontmatter is not closed"},
		{"not opened", "model: x\nsandbox: python\n---\nbody\n", "`sandbox:` is outside the frontmatter"},
		{"indented marker", "  ---\nsandbox: python\n  ---\nbody\n", "a.prompt:1:1: the opening --- is indented"},
		{"text after marker", "--- # x\nsandbox: python\n---\nbody\n", "a.prompt:1:4: text after the opening ---"},
		{"tab", "---\nsandbox:\n\tmode: code\n---\n", "a.prompt:3:1: malformed YAML: a tab in the indentation; indent with spaces"},
		{"syntax", "---\nmodel: x\nsandbox: {mode: code\nother: y\n---\n", "a.prompt:"},
		{"syntax line", "---\nmodel: x\n  sandbox: python\n---\n", "a.prompt:3:10: malformed YAML: mapping values are not allowed in this context; correct the indentation"},
		{"second document", "---\nmodel: x\n--- {sandbox: python}\n---\n", "a.prompt:3: more than one YAML document"},
		{"document end", "---\nmodel: x\n...\nsandbox: python\n---\nbody\n", "a.prompt:"},
		{"carriage returns", "---\nmodel: x\rsandbox: python\n---\n", "a.prompt:2: carriage return without line feed"},
		{"old mac", "---\rmodel: x\r---\rbody", "a.prompt:1:4: text after the opening ---"},
		{"nul", "---\nmodel: x\x00\n---\n", "a.prompt:2:9: NUL byte"},
		{"nul in body", "---\nmodel: x\n---\na\x00b", "a.prompt:4:2: NUL byte"},
		{"utf-16", "\xff\xfe-\x00-\x00-\x00", "a.prompt:1:1: the file is UTF-16; save it as UTF-8"},
		{"invalid utf-8", "---\nmodel: é\n---\nab\xff\n", "a.prompt:4:3: the file is not valid UTF-8"},
		{"custom tag", "---\nconfig: !secret x\n---\n", "a.prompt:2:9: the tag !secret is not supported"},
		{"binary tag", "---\nsandbox: {image: !!binary aGk=}\n---\n", "the tag !!binary is not supported"},
		{"alias in sandbox", "---\nx: &a python\nsandbox: *a\n---\n", "a.prompt:3:10: aliases are not supported here"},
		{"merge", "---\nx: &a {sandbox: {}}\n<<: *a\n---\n", "a.prompt:3:1: merge keys are not supported here"},
		{"merge in use", "---\nx: &a {config: {mode: code}}\nuse: [{name: workcell/sandbox, <<: *a}]\n---\n",
			"a.prompt:3:32: merge keys are not supported here"},
		{"merge in output", "---\nx: &a {format: json}\noutput: {<<: *a}\n---\n", "a.prompt:3:10: merge keys are not"},
		{"merge in sandbox", "---\nx: &a {mode: code}\nsandbox:\n  <<: *a\n  runtime: node\n---\n", "a.prompt:4:3: merge keys are not supported here"},
		{"anchor in sandbox", "---\nsandbox: &a {mode: code}\nx: *a\n---\n", "a.prompt:2:10: anchors are not supported here"},
		{"recursive alias", "---\nx: &a [*a]\n---\n", "a.prompt:2:8: the alias *a contains itself"},
		{"key is a list", "---\n? [a]\n: b\n---\n", "a.prompt:2:3: a key must be text"},
		{"list as frontmatter", "---\n- a\n---\n", "a.prompt:2:1: the frontmatter must be a mapping, not a list"},
		{"two blocks", "---\nmodel: x\n---\n---\nsandbox: python\n---\nbody\n", "a.prompt:4: the template begins with a second frontmatter block"},
		{"maxTurns", "---\nmaxTurns: -1\n---\n", "a.prompt:2:11: maxTurns must be 1 to 10000, not -1"},
		{"model", "---\nmodel: [x]\n---\n", "a.prompt:2:8: model must be text, not a list"},
		{"toolChoice", "---\ntoolChoice: always\n---\n", `unknown toolChoice "always"; available: auto, required, none`},
		{"tools", "---\ntools: [a, {b: c}]\n---\n", "tools[1] must be text, not a mapping"},
		{"use", "---\nuse: {a: b}\n---\n", "use must be a list"},
		{"use entry", "---\nuse: [{config: {}}]\n---\n", "an entry of use must be the name of a middleware"},
		{"use config", "---\nuse: [{name: workcell/sandbox, config: {mod: code}}]\n---\n", `a.prompt:2:41: unknown key "mod" in sandbox; did you mean "mode"?`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			doc, err := frontmatter.Parse("a.prompt", []byte(tt.src))
			if err == nil {
				t.Fatalf("no error; sandbox %+v", doc.Sandbox)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error:\n%v\nwant it to contain:\n%s", err, tt.want)
			}
			var one *frontmatter.Error
			if !errors.As(err, &one) || one.File != "a.prompt" || one.Line == 0 {
				t.Errorf("errors.As: %+v", one)
			}
		})
	}
}

func TestParseReportsAllProblems(t *testing.T) {
	t.Parallel()
	_, err := frontmatter.Parse("bad.prompt", []byte(`---
model: 5
sandbox:
  mode: cod
  imagee: x
  limits:
    pids: -4
    memory_mb: "8"
  env: {"1A": x}
maxTurns: none
---
`))
	want := `bad.prompt:2:8: model must be text, not the number 5; put it in quotes: "5"
bad.prompt:4:9: unknown mode "cod"; did you mean "code"?
bad.prompt:5:3: unknown key "imagee" in sandbox; did you mean "image"?
bad.prompt:7:11: limits.pids must be 16 to 4194304, not -4
bad.prompt:8:16: sandbox.limits.memory_mb must be a whole number, not text
bad.prompt:9:9: "1A" is not the name of an environment variable
bad.prompt:10:11: maxTurns must be a whole number, not text`
	if err == nil {
		t.Fatal("no error")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

func TestParseAcceptsOddFiles(t *testing.T) {
	t.Parallel()
	for name, src := range map[string]string{
		"byte order mark":       "\ufeff---\nsandbox: python\n---\nbody",
		"crlf":                  "---\r\nsandbox: python\r\n---\r\nbody",
		"crlf with preamble":    "# licence\r\n\r\n---\r\nsandbox: python\r\n---\r\nbody",
		"no newline at the end": "---\nsandbox: python\n---",
		"spaces after markers":  "---  \nsandbox: python\n---\t\nbody",
		"merge key elsewhere":   "---\na: &a {x: 1}\nb: {<<: *a}\nsandbox: python\n---\nbody",
		"indented":              "---\n  model: x\n  sandbox: python\n---\nbody",
		"comment only":          "---\n# nothing\nsandbox: python # none\n---\nbody",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc, err := frontmatter.Parse("a.prompt", []byte(src))
			checktest.Must(t, err)
			if doc.Sandbox == nil || doc.Sandbox.Runtime != "python" {
				t.Errorf("sandbox = %+v", doc.Sandbox)
			}
			checkSource(t, doc)
		})
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]frontmatter.Sandbox{
		"python:3.11-slim": {}, "node:20-slim": {Runtime: "node"}, "debian:bookworm-slim": {Runtime: "bash"}, "x": {Image: "x"},
	} {
		if got := s.WithDefaults(); got.Image != want || got.Mode != frontmatter.ModeCompute || got.Session != "default" {
			t.Errorf("WithDefaults = %+v, want the image %s", got, want)
		}
	}
	if s := (frontmatter.Sandbox{AllowNetwork: new(true), TimeoutSeconds: 5, Limits: frontmatter.Limits{TimeoutSeconds: 60}}).WithDefaults(); !s.Network.Allowed() ||
		s.Limits.ExecTimeout.String() != "5s" || s.Limits.IdleTimeout.String() != "1m" {
		t.Errorf("WithDefaults = %+v", s)
	}
	if s := (frontmatter.Sandbox{AllowNetwork: new(false)}).WithDefaults(); s.Network.Allowed() || s.Network.Enabled == nil {
		t.Errorf("allow_network: false makes %+v", s.Network)
	}
}
