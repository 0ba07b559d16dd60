package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/environ"
)

// machine is a user's configuration directory and a working directory.
type machine struct {
	t    *testing.T
	env  map[string]string
	here string
}

// newMachine returns a machine with the files of the user and of the working directory; empty for none.
func newMachine(t *testing.T, users, project string) machine {
	m := machine{t, map[string]string{"XDG_CONFIG_HOME": t.TempDir()}, t.TempDir()}
	for path, text := range map[string]string{m.users(): users, filepath.Join(m.here, Name): project} {
		if text != "" {
			m.write(path, text)
		}
	}
	return m
}

func (m machine) users() string { return filepath.Join(m.env["XDG_CONFIG_HOME"], "workcell", Name) }

func (m machine) write(path, text string) string {
	m.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return path
}

func (m machine) load(file string, flags map[string]any) (*Config, error) {
	return Load(Options{
		Env: environ.Of(m.env), File: file, Dir: m.here, Flags: flags, Backends: []string{"auto", "docker", "containerd", "local"},
	})
}

// origins returns the settings that somebody set, as text.
func origins(c *Config) map[string]string {
	set := map[string]string{}
	for _, v := range c.Values() {
		if v.Origin != Default {
			set[v.Key] = v.Origin
		}
	}
	return set
}

const whole = `backend: containerd
images: {python: "registry.example.com/python:3.11"}
allow_images: ["registry.example.com/*"]
map_images:
  node:20-slim: registry.example.com/node:20
limits:
  memory_mb: 1024
  file_bytes: 4096
  idle_timeout: 1m
  exec_timeout: 30s
telemetry: {endpoint: "http://localhost:4318", protocol: grpc, service_name: agents, content: true}
retention: {runs: 240h, kept: 24h}
oci_runtime: runsc
`

// TestEverySetting: what a file says is what holds, and the rest is the default.
func TestEverySetting(t *testing.T) {
	t.Parallel()
	m := newMachine(t, whole, "")
	c, err := m.load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	at := m.users() + ":"
	want := map[string]string{
		"backend": at + "1:10", "images.python": at + "2:18", "allow_images": at + "3:15", "map_images": at + "5:3",
		"limits.memory_mb": at + "7:14", "limits.file_bytes": at + "8:15", "limits.idle_timeout": at + "9:17",
		"limits.exec_timeout": at + "10:17", "telemetry.endpoint": at + "11:23", "telemetry.protocol": at + "11:58",
		"telemetry.service_name": at + "11:78", "telemetry.content": at + "11:95", "retention.runs": at + "12:19", "retention.kept": at + "12:31",
		"oci_runtime": at + "13:14",
	}
	if diff := cmp.Diff(want, origins(c)); diff != "" {
		t.Errorf("origins (-want +got)\n%s", diff)
	}
	got := []any{
		c.Backend(), c.OCIRuntime(), c.Image("python"), c.Image("node"), c.Images(), c.MapImages(), c.Limits(), c.IdleTimeout(), c.ExecTimeout(),
		c.Variables(), c.TraceContent(), c.KeepRuns(), c.KeepSandboxes(), c.Files,
	}
	if diff := cmp.Diff([]any{
		"containerd", "runsc", "registry.example.com/python:3.11", "node:20-slim", map[string]string{"python": "registry.example.com/python:3.11"},
		[]string{"node:20-slim=registry.example.com/node:20"}, backend.Limits{MemoryBytes: 1 << 30, FileBytes: 4096}, time.Minute, 30 * time.Second,
		map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_SERVICE_NAME": "agents"},
		true, 240 * time.Hour, 24 * time.Hour, []string{m.users()},
	}, got); diff != "" {
		t.Errorf("values (-want +got)\n%s", diff)
	}
	if err := c.CheckImage("registry.example.com/a:1"); err != nil {
		t.Error(err)
	}
	if err := c.CheckImage("python:3.11-slim"); err == nil || !strings.HasSuffix(err.Error(), "; the list is "+at+"3:15") {
		t.Errorf("an image that is not on the list: %v", err)
	}
}

// TestEveryLimit: each row of the table of limits is a setting with its default.
func TestEveryLimit(t *testing.T) {
	t.Parallel()
	c, err := newMachine(t, "", "").load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	if l := c.Limits(); l != (backend.Limits{}) {
		t.Errorf("limits that nobody set: %+v", l)
	}
	for _, row := range backend.LimitTable() {
		if v, set := c.get(keyLimits + row.Name); set || v != row.Default/row.Scale {
			t.Errorf("%s is %v, %t", row.Name, v, set)
		}
	}
	if err := c.CheckImage("anything.example.com/at/all:1"); err != nil {
		t.Errorf("without a list: %v", err)
	}
}

// TestPrecedence: flag, environment, file, default; mappings are what all of them say.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	m := newMachine(t, whole, "")
	m.env["WORKCELL_BACKEND"], m.env["OTEL_SERVICE_NAME"], m.env["WORKCELL_IMAGE_MAP"] = "docker", "other", "a=b,c=d"
	c, err := m.load("", map[string]any{"backend": "local", "allow-image": []string{"python:*"}, "map-image": []string{"a=e"}})
	if err != nil {
		t.Fatal(err)
	}
	set := origins(c)
	for key, want := range map[string]string{
		"backend": "--backend", "telemetry.service_name": "$OTEL_SERVICE_NAME", "allow_images": "--allow-image",
		"map_images": m.users() + ":5:3, $WORKCELL_IMAGE_MAP, --map-image", "telemetry.protocol": m.users() + ":11:58",
	} {
		if set[key] != want {
			t.Errorf("%s is from %q, want %q", key, set[key], want)
		}
	}
	if got := strings.Join(c.MapImages(), " "); c.Backend() != "local" || got != "node:20-slim=registry.example.com/node:20 a=b c=d a=e" {
		t.Errorf("backend %s, images %s", c.Backend(), got)
	}
}

// TestWhichFile: --config, else the variable, is the only file that is read.
func TestWhichFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "backend: docker", "limits: {pids: 32}")
	c, err := m.load("", nil)
	if err != nil || len(c.Files) != 2 || c.Backend() != "docker" || c.Limits().PIDs != 32 {
		t.Fatalf("%v: %v", c.Files, err)
	}
	m.env[Variable] = m.write(filepath.Join(m.here, "env.yaml"), "backend: containerd")
	if c, err = m.load("", nil); err != nil || c.Backend() != "containerd" || c.Limits().PIDs != 0 {
		t.Errorf("with $%s: %v, %v", Variable, c, err)
	}
	if c, err = m.load(m.write(filepath.Join(m.here, "flag.yaml"), "backend: local"), nil); err != nil || c.Backend() != "local" {
		t.Errorf("with --config: %v, %v", c, err)
	}
	if c, err = m.load("/dev/null", nil); err != nil || len(origins(c)) != 0 {
		t.Errorf("with an empty file: %v, %v", c, err)
	}
	if _, err = m.load(filepath.Join(m.here, "missing.yaml"), nil); err == nil || !strings.HasPrefix(err.Error(), "--config: ") {
		t.Errorf("with a file that is not there: %v", err)
	}
	m = newMachine(t, "backend: docker", "")
	m.here = filepath.Dir(m.users()) // one file in both places is the user's
	if c, err = m.load("", nil); err != nil || c.Backend() != "docker" {
		t.Errorf("in the configuration directory: %v", err)
	}
}

// TestStrict: what is wrong with a file is an error with its place, all of it at once.
func TestStrict(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"bakend: docker":                              `1:1: unknown key "bakend" in the file; did you mean "backend"?`,
		"limits: {memory: 1024}":                      `1:10: unknown key "memory" in limits; did you mean "memory_mb"?`,
		"limits: {memory_mb: 1024, memory_mb: 2}":     `1:27: duplicate key "memory_mb"`,
		"backend: docker\nbackend: local":             `2:1: duplicate key "backend"; the first is on line 1`,
		"limits.memory_mb: 1024":                      `1:1: unknown key "limits.memory_mb" in the file`,
		"kubernetes: {claims: warm}":                  `1:14: unknown key "claims" in kubernetes; it was removed; ` + "use `pool: {IMAGE: N}`",
		"kubernetes: {trust_network_policy: true}":    `1:14: unknown key "trust_network_policy" in kubernetes; use kubernetes.network_policy: enforced`,
		"kubernetes: {network_policy: on}":            `1:30: unknown network policy "on"; run `,
		"limits: {memory_mb: 1024m}":                  `1:21: limits.memory_mb must be a whole number, it is text`,
		"limits: {memory_mb: 15}":                     `1:21: limits.memory_mb is 15, it must be 16 to 4194304`,
		"limits: {pids: -1}":                          `1:16: limits.pids is -1`,
		"limits: {pids: 99999999999999999999}":        `1:16: limits.pids must be a whole number`,
		"limits: {exec_timeout: 3601s}":               `1:24: limits.exec_timeout is 1h0m1s, it must be 1s to 1h`,
		"limits: {idle_timeout: 0s}":                  `1:24: limits.idle_timeout is 0; remove it`,
		"limits: {idle_timeout: 900}":                 `1:24: limits.idle_timeout must be a time such as 36h or 90m, it is the number 900; add a unit, as in 900s`,
		"limits: {exec_timeout_seconds: 90}":          `1:10: unknown key "exec_timeout_seconds" in limits; did you mean "exec_timeout"?`,
		"limits: 5":                                   `1:9: limits must be a mapping, it is the number 5`,
		"limits:":                                     `1:8: limits must be a mapping, it is nothing`,
		"backend:":                                    `1:9: backend is empty; give a value or remove the key`,
		"backend: dokcer":                             `1:10: unknown backend "dokcer"; did you mean "docker"?`,
		"backend: [docker]":                           `1:10: backend must be text, it is a list`,
		"backend: &b docker\nimages: {python: *b}":    ``,
		"allow_images: python":                        `1:15: allow_images must be a list of text`,
		"allow_images: [PYTHON]":                      `1:15: image pattern "PYTHON"`,
		"images: {python: UPPER}":                     `1:18: image reference "UPPER"`,
		"images: {ruby: ruby:3}":                      `1:10: unknown key "ruby" in images`,
		"map_images: {a: 5}":                          `1:13: map_images must be a mapping of text to text`,
		"pool: {python: many}":                        `1:7: pool must be a mapping of text to whole numbers`,
		"pool: {python: 5000}":                        `1:7: python=5000 is out of range`,
		"pool: {UPPER: 1}":                            `1:7: image reference "UPPER"`,
		"telemetry: {content: yes please}":            `1:22: telemetry.content must be true or false`,
		"telemetry: {endpoint: 'http://u:secret@'}":   `1:23: the endpoint is not an http or https URL`,
		"telemetry: {protocol: udp}":                  `1:23: unknown protocol "udp"`,
		"retention: {runs: 30 days}":                  `1:19: retention.runs must be a time such as 36h or 90m`,
		"retention: {runs: 0s}":                       `1:19: 0s is out of range`,
		"- backend":                                   `1:1: the file must be a mapping, it is a list`,
		"a: b\n---\nc: d":                             `more than one YAML document`,
		"backend: !!binary aGVsbG8=":                  `the tag !!binary is not supported`,
		"<<: {backend: docker}":                       `merge keys are not supported`,
		"\tbackend: docker":                           `1:1: malformed YAML: a tab in the indentation`,
		"# nothing but a comment":                     ``,
		"images: {python: a:1}\nallow_images: ['b*']": `images.python: image a:1 is not allowed by allow_images`,
	} {
		m := newMachine(t, text, "")
		_, err := m.load("", nil)
		if want == "" {
			if err != nil {
				t.Errorf("%s\n%v", text, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), m.users()+":") {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error has the password: %v", text, err)
		}
	}
	_, err := newMachine(t, "bakend: docker\nlimits: {pids: 1}\n", "").load("", nil)
	if err == nil || strings.Count(err.Error(), Name) != 2 {
		t.Errorf("two problems: %v", err)
	}
}

// TestProjectLoosensNothing: a file in the working directory, which may have come with a repository, can only tighten.
func TestProjectLoosensNothing(t *testing.T) {
	t.Parallel()
	const users = "limits: {memory_mb: 1024}\nallow_images: ['python:*', 'ghcr.io/acme/**']\n"
	for project, want := range map[string]string{
		"backend: local":                             "backend cannot be set here",
		"backend: docker":                            "backend cannot be set here",
		"map_images: {python:3.11: evil/x}":          "map_images cannot be set here",
		"pool: {python:3.11: 1}":                     "pool cannot be set here",
		"telemetry: {endpoint: http://evil.example}": "telemetry.endpoint cannot be set here",
		"telemetry: {content: true}":                 "telemetry.content cannot be set here",
		"telemetry: {service_name: x}":               "telemetry.service_name cannot be set here",
		"telemetry: {protocol: grpc}":                "telemetry.protocol cannot be set here",
		"retention: {runs: 1s}":                      "retention.runs cannot be set here", // it would forget the user's other runs
		"retention: {kept: 1000h}":                   "retention.kept cannot be set here",
		"limits: {memory_mb: 1025}":                  "limits.memory_mb may only be lowered here, from 1024 (",
		"limits: {pids: 257}":                        "limits.pids may only be lowered here, from 256 (default)",
		"limits: {exec_timeout: 121s}":               "limits.exec_timeout may only be lowered here, from 2m0s (default)",
		"limits: {idle_timeout: 901s}":               "limits.idle_timeout may only be lowered",
		"images: {python: evil.example/python}":      "images.python may only be an image that allow_images allows (",
		"images: {python: ghcr.io/acme/python:1}":    "",
		"limits: {memory_mb: 512, file_bytes: 1000}": "",
	} {
		c, err := newMachine(t, users, project).load("", nil)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", project, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), Name+":1:") || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, %v, want %q", project, c, err, want)
		}
	}
	if _, err := newMachine(t, "", "images: {python: evil.example/python}").load("", nil); err == nil {
		t.Error("an image without a list of the operator's was taken")
	}

	c, err := newMachine(t, users, "limits: {workspace_mb: 500, memory_mb: 1024, pids: 255}").load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	if l := c.Limits(); l.WorkspaceBytes != 0 || l.MemoryBytes != 1<<30 || l.PIDs != 255 {
		t.Errorf("limits %+v", l)
	}

	// A second list narrows the first and never replaces it, whatever it says.
	c, err = newMachine(t, users, "allow_images: ['python:3.*', '**.example.com/x', 'evil.example/*']").load("", nil)
	if err == nil {
		t.Errorf("a malformed pattern was taken: %v", c.Values())
	}
	c, err = newMachine(t, users, "allow_images: ['python:3.*', 'evil.example/*']").load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	for image, allowed := range map[string]bool{"python:3.11-slim": true, "python:2": false, "ghcr.io/acme/x": false, "evil.example/a": false} {
		if err := c.CheckImage(image); (err == nil) != allowed {
			t.Errorf("%s: %v", image, err)
		}
	}
	if set := c.Values(); set[4].Key != keyAllowImages || set[5].Key != keyAllowImages {
		t.Errorf("both lists are not shown: %+v", set)
	}

	// What the user says on the command line holds.
	m := newMachine(t, users, "allow_images: []\nbackend: docker\n")
	if c, err = m.load("", map[string]any{"allow-image": []string{"node:*"}, "backend": "local"}); err != nil || c.CheckImage("node:20") != nil {
		t.Errorf("with flags: %v", err)
	}
	// Named, it is the user's own.
	if c, err = m.load(filepath.Join(m.here, Name), nil); err != nil || c.Backend() != "docker" {
		t.Errorf("with --config: %v", err)
	}
}

// TestProjectIsARegularFile: a link may lead anywhere, and a pipe is never read.
func TestProjectIsARegularFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", "")
	if err := os.Symlink("/etc/passwd", filepath.Join(m.here, Name)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.load("", nil); err == nil || !strings.Contains(err.Error(), "it must be a regular file") {
		t.Errorf("a link: %v", err)
	}
}

// FuzzParse: no text ends the program, what is refused has a place in the file, and what is taken is within the table's
// bounds.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("limits: {memory_mb: 1e3}\nallow_images: [a, [b]]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	table := settings([]string{"auto"})
	f.Fuzz(func(t *testing.T, src []byte) {
		file, err := parse(table, "f", src)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("no place: %v", err)
			}
			return
		}
		for _, s := range table {
			e, ok := file.get(s.key)
			if !ok {
				continue
			}
			if e.line < 1 || e.column < 1 {
				t.Errorf("%s is at %d:%d", s.key, e.line, e.column)
			}
			if s.check != nil {
				if problem, _ := s.check(e.value); problem != "" {
					t.Errorf("%s was taken: %s", s.key, problem)
				}
			}
		}
	})
}

// TestPool: flags go over the file image by image, and zero takes one back.
func TestPool(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "pool: {python:3.11: 4, node:20: 1}", "")
	c, err := m.load("", map[string]any{"pool": []string{"python:3.11=2", "node:20=0"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"python:3.11": 2}, c.Pool()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, bad := range []string{"python", "python=", "python=-1", "python=x", "=1"} {
		if _, err := m.load("", map[string]any{"pool": []string{bad}}); err == nil || !strings.Contains(err.Error(), "--pool") {
			t.Errorf("--pool %s: %v", bad, err)
		}
	}
}

// TestMounts: what the machine shows to sandboxes is the operator's to say, and no file's of a working directory.
func TestMounts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]backend.Mount{
		"/a:/b": {Source: "/a", Target: "/b"}, "/a/:/b:ro": {Source: "/a", Target: "/b"}, "/a:/b/c:rw": {Source: "/a", Target: "/b/c", Writable: true},
	} {
		if got, err := parseMount(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "/a", "a:/b", "/a:b", "/a:/b:", "/a:/b:rw:x", "/a:/b:RW", "/a:/b:rw,exec", ":", "/a:"} {
		if got, err := parseMount(text); err == nil && text != "/a:/b:" {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
