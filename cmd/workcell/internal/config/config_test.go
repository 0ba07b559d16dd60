package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/hint"
)

// machine is a host with a user's configuration directory.
type machine struct {
	t   *testing.T
	env map[string]string
}

// newMachine returns a machine with the user's configuration file. If users is empty, there is no file.
func newMachine(t *testing.T, users string) machine {
	m := machine{t, map[string]string{"XDG_CONFIG_HOME": t.TempDir()}}
	if users != "" {
		m.write(m.users(), users)
	}
	return m
}

func (m machine) users() string { return filepath.Join(m.env["XDG_CONFIG_HOME"], "workcell", fileName) }

func (m machine) write(path, text string) string {
	m.t.Helper()
	checktest.Must(m.t, os.MkdirAll(filepath.Dir(path), 0o700))
	checktest.Must(m.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func (m machine) load(file string, flags map[string][]string) (*Config, error) {
	return Load(Options{
		Env: environ.Of(m.env), File: file, Flags: flags, Backends: []string{"auto", "docker", "containerd", "local"},
	})
}

// origins returns the settings other than defaults, as text.
func origins(c *Config) map[string]string {
	set := map[string]string{}
	for _, v := range c.Values() {
		if v.Origin != notSet {
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
retention: {runs: 240h, kept: 24h, transcripts: 0}
approvals: wait
oci_runtime: runsc
isolation: kernel
kubernetes:
  image_pull_secrets: [registry]
  node_selector: {pool: agents, disk: ssd}
  tolerations: [{key: sandboxes, operator: Equal, value: only, effect: NoSchedule, tolerationSeconds: 60}, {operator: Exists}]
  priority_class: low
  labels: {example.com/team: ml}
  annotations: {example.com/note: "a, b"}
  node_timeout: 5m
  allow_nets: [10.0.0.7/32]
  deny_nets: ["2600:db8::/56"]
  dns: {namespace: openshift-dns, labels: {a: b}, port: 5353}
`

// TestEverySetting verifies that every setting in a file takes effect, and all other settings have their defaults.
func TestEverySetting(t *testing.T) {
	t.Parallel()
	m := newMachine(t, whole)
	c, err := m.load("", nil)
	checktest.Must(t, err)
	for _, key := range []string{
		"backend", "images.python", "allow_images", "map_images", "limits.memory_mb", "limits.file_bytes", "limits.idle_timeout", "limits.exec_timeout",
		"telemetry.endpoint", "telemetry.protocol", "telemetry.service_name", "telemetry.content", "retention.runs", "retention.kept", "approvals", "oci_runtime", "isolation",
		"kubernetes.image_pull_secrets", "kubernetes.node_selector", "kubernetes.tolerations", "kubernetes.priority_class",
		"kubernetes.labels", "kubernetes.annotations", "retention.transcripts",
		"kubernetes.node_timeout", "kubernetes.allow_nets", "kubernetes.deny_nets",
		"kubernetes.dns.namespace", "kubernetes.dns.labels", "kubernetes.dns.port",
	} {
		if origins(c)[key] != m.users() {
			t.Errorf("%s is from %q", key, origins(c)[key])
		}
	}
	got := []any{
		c.Backend, c.OCIRuntime, c.Isolation, c.Image("python"), c.Image("node"), c.Images, c.MapImages, c.Limits, c.IdleTimeout, c.ExecTimeout,
		c.Variables, c.TraceContent, c.KeepRuns, c.KeepSandboxes, c.KeepTranscripts, c.Approvals, c.File, len(origins(c)),
		c.Kubernetes, fmt.Sprint(c.Kubernetes.Tolerations),
	}
	if diff := cmp.Diff([]any{
		"containerd", "runsc", backend.IsolationKernel, "registry.example.com/python:3.11", "node:20-slim", map[string]string{"python": "registry.example.com/python:3.11"},
		map[string]string{"docker.io/library/node:20-slim": "registry.example.com/node:20"}, backend.Limits{MemoryBytes: 1 << 30, FileBytes: 4096}, time.Minute, 30 * time.Second,
		map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_SERVICE_NAME": "agents"},
		true, 240 * time.Hour, 24 * time.Hour, time.Duration(0), ApprovalsWait, m.users(), 30,
		Kubernetes{
			ImagePullSecrets: []string{"registry"}, NodeSelector: []string{"disk=ssd", "pool=agents"}, PriorityClass: "low",
			Labels: []string{"example.com/team=ml"}, Annotations: []string{"example.com/note=a, b"},
			Tolerations: []Toleration{{Key: "sandboxes", Operator: "Equal", Value: "only", Effect: "NoSchedule", Seconds: 60}, {Operator: "Exists"}},
			AllowNets:   []string{"10.0.0.7/32"}, DenyNets: []string{"2600:db8::/56"},
			DNSNamespace: "openshift-dns", DNSLabels: []string{"a=b"}, DNSPort: 5353, NodeTimeout: 5 * time.Minute,
		}, "[sandboxes=only:NoSchedule *]",
	}, got); diff != "" {
		t.Errorf("values (-want +got)\n%s", diff)
	}
	if err := c.CheckImage("registry.example.com/a:1"); err != nil {
		t.Error(err)
	}
	if err := c.CheckImage("python:3.11-slim"); err == nil || !strings.HasSuffix(err.Error(), "; the list is "+m.users()) {
		t.Errorf("an image that is not on the list: %v", err)
	}
}

// TestEveryLimit verifies that each row of the table of limits is a setting with a default.
func TestEveryLimit(t *testing.T) {
	t.Parallel()
	c, err := newMachine(t, "").load("", nil)
	checktest.Must(t, err)
	if c.Limits != (backend.Limits{}) {
		t.Errorf("limits that are not set: %+v", c.Limits)
	}
	for _, row := range backend.LimitTable() {
		if want := (Value{keyLimits + row.Name, row.Default / row.Scale, notSet}); !slices.ContainsFunc(c.Values(), func(v Value) bool { return v.Key == want.Key && v == want }) {
			t.Errorf("%+v is missing", want)
		}
	}
	if err := c.CheckImage("anything.example.com/at/all:1"); err != nil {
		t.Errorf("without a list: %v", err)
	}
}

// TestPrecedence verifies the order flag, environment, file, default. Mappings are merged from all sources.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	m := newMachine(t, whole)
	m.env["WORKCELL_BACKEND"], m.env["OTEL_SERVICE_NAME"], m.env["WORKCELL_IMAGE_MAP"] = "docker", "other", "a=b,c=d"
	c, err := m.load("", map[string][]string{
		"backend": {"local"}, "allow-image": {"python:*"}, "map-image": {"a=e"}, "isolation": {"vm"},
	})
	checktest.Must(t, err)
	set := origins(c)
	weaker, err := m.load("", map[string][]string{"isolation": {"process"}})
	if err != nil || c.Isolation != "vm" || weaker.Isolation != "kernel" || origins(weaker)["isolation"] != m.users() {
		t.Errorf("isolation %s and %s, %v", c.Isolation, weaker.Isolation, err)
	}
	for key, want := range map[string]string{
		"isolation": "--isolation",
		"backend":   "--backend", "telemetry.service_name": "$OTEL_SERVICE_NAME", "allow_images": "--allow-image",
		"map_images": m.users() + ", $WORKCELL_IMAGE_MAP, --map-image", "telemetry.protocol": m.users(),
	} {
		if set[key] != want {
			t.Errorf("%s is from %q, want %q", key, set[key], want)
		}
	}
	images := map[string]string{"docker.io/library/node:20-slim": "registry.example.com/node:20",
		"docker.io/library/a:latest": "e", "docker.io/library/c:latest": "d"}
	if diff := cmp.Diff(images, c.MapImages); c.Backend != "local" || diff != "" {
		t.Errorf("backend %s, images (-want +got)\n%s", c.Backend, diff)
	}
}

// TestWhichFile verifies that --config, or else the variable, specifies the only file to read.
func TestWhichFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "backend: docker\nlimits: {pids: 32}")
	c, err := m.load("", nil)
	if err != nil || c.File != m.users() || c.Backend != "docker" || c.Limits.PIDs != 32 {
		t.Fatalf("%+v: %v", c, err)
	}
	dir := t.TempDir()
	m.env[Variable] = m.write(filepath.Join(dir, "env.yaml"), "backend: containerd")
	if c, err = m.load("", nil); err != nil || c.Backend != "containerd" || c.Limits.PIDs != 0 {
		t.Errorf("with $%s: %v, %v", Variable, c, err)
	}
	if c, err = m.load(m.write(filepath.Join(dir, "flag.yaml"), "backend: local"), nil); err != nil || c.Backend != "local" {
		t.Errorf("with --config: %v, %v", c, err)
	}
	if c, err = m.load("/dev/null", nil); err != nil || len(origins(c)) != 0 {
		t.Errorf("with an empty file: %v, %v", c, err)
	}
	if _, err = m.load(filepath.Join(dir, "missing.yaml"), nil); err == nil || !strings.HasPrefix(err.Error(), "--config: ") {
		t.Errorf("with a missing file: %v", err)
	}
	delete(m.env, Variable)
	checktest.Must(t, errors.Join(os.Remove(m.users()), os.Symlink("missing", m.users())))
	if _, err = m.load("", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with a link to a missing file: %v", err)
	}
}

// TestStrict verifies that all problems of a file are reported at once, with their positions.
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
		"kubernetes: {tolerations: [{tolerates: x}]}": `1:29: unknown key "tolerates" in kubernetes.tolerations[0]`,
		"kubernetes: {network_policy: on}":            `1:30: unknown network policy "on"; run `,
		"kubernetes: {node_timeout: 31m}":             `1:28: node_timeout must be 1s to 30m0s, not 31m0s`,
		"kubernetes: {deny_nets: [10.0.0.7]}":         `1:25: invalid network "10.0.0.7"; for example 10.20.0.0/16`,
		"kubernetes: {allow_nets: [10.0.0.7/8]}":      `1:26: invalid network "10.0.0.7/8"; did you mean 10.0.0.0/8?`,
		"kubernetes: {dns: {port: 65536}}":            `1:26: port must be 1 to 65535, not 65536`,
		"kubernetes: {dns: {pod: a}}":                 `1:20: unknown key "pod" in kubernetes.dns; available: labels`,
		"limits: {memory_mb: 1024m}":                  `1:21: limits.memory_mb must be a whole number, not text`,
		"limits: {memory_mb: 15}":                     `1:21: limits.memory_mb must be 16 to 4194304, not 15`,
		"limits: {pids: -1}":                          `1:16: limits.pids must be 16 to 4194304, not -1`,
		"limits: {pids: 99999999999999999999}":        `1:16: limits.pids must be a whole number`,
		"limits: {exec_timeout: 3601s}":               `1:24: limits.exec_timeout must be 1s to 1h, not 1h0m1s`,
		"limits: {idle_timeout: 0s}":                  `1:24: limits.idle_timeout is 0; remove it`,
		"limits: {idle_timeout: 900}":                 `1:24: limits.idle_timeout must be a duration, not the number 900; add a unit, for example 900s`,
		"limits: {exec_timeout_seconds: 90}":          `1:10: unknown key "exec_timeout_seconds" in limits; did you mean "exec_timeout"?`,
		"limits: 5":                                   `1:9: limits must be a mapping, not the number 5`,
		"limits:":                                     `1:8: limits is empty; set a value or remove the key`,
		"backend:":                                    `1:9: backend is empty; set a value or remove the key`,
		"isolation: kernal":                           `1:12: unknown isolation "kernal"; did you mean "kernel"?`,
		"backend: dokcer":                             `1:10: unknown backend "dokcer"; did you mean "docker"?`,
		"backend: [docker]":                           `1:10: backend must be text, not a list`,
		"backend: &b docker\nimages: {python: *b}":    ``,
		"allow_images: python":                        `1:15: allow_images must be a list, not text`,
		"allow_images: ['']":                          `1:16: allow_images[0] is empty`,
		"allow_images: [PYTHON]":                      `1:15: image pattern "PYTHON"`,
		"images: {python: UPPER}":                     `1:18: image reference "UPPER"`,
		"images: {ruby: ruby:3}":                      `1:10: unknown key "ruby" in images`,
		"map_images: {a: [5]}":                        `1:17: map_images.a must be text, not a list`,
		"pool: {python: many}":                        `1:7: the number of sandboxes of python must be 0 to 1000, not "many"; for example python=4`,
		"pool: {python: 5000}":                        `1:7: the number of sandboxes of python must be 0 to 1000, not "5000"; for example python=4`,
		"pool: {UPPER: 1}":                            `1:7: image reference "UPPER"`,
		"telemetry: {content: yes please}":            `1:22: telemetry.content must be true or false`,
		"telemetry: {endpoint: 'http://u:secret@'}":   `1:23: the endpoint is not an http or https URL`,
		"telemetry: {protocol: udp}":                  `1:23: unknown protocol "udp"`,
		"retention: {runs: 30 days}":                  `1:19: retention.runs must be a duration, not text; write it as`,
		"retention: {transcripts: -1s}":               `1:26: retention.transcripts must be 0s to 87600h0m0s, not -1s`,
		"retention: {runs: 0s}":                       `1:19: retention.runs is 0; remove it`,
		"- backend":                                   `1:1: the file must be a mapping, not a list`,
		"a: b\n---\nc: d":                             `more than one YAML document`,
		"backend: !!binary aGVsbG8=":                  `the tag !!binary is not supported`,
		"<<: {backend: docker}":                       `merge keys are not supported`,
		"\tbackend: docker":                           `1:1: malformed YAML: a tab in the indentation`,
		"# only a comment":                            ``,
		"images: {python: a:1}\nallow_images: ['b*']": `images.python: image a:1 is not allowed by allow_images`,
	} {
		m := newMachine(t, text)
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
	_, err := newMachine(t, "bakend: docker\nlimits: {pids: 1}\n").load("", nil)
	if err == nil || strings.Count(err.Error(), fileName) != 2 {
		t.Errorf("two problems: %v", err)
	}
}

// FuzzParse verifies that the parser never panics, errors have a position in the file, and accepted values
// are within the table's limits.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("limits: {memory_mb: 1e3}\nallow_images: [a, [b]]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		table := (&Config{Images: map[string]string{}, MapImages: map[string]string{}, Pool: map[string]int{}, Caches: map[string]string{}, Variables: map[string]string{}}).settings(environ.Of(nil), []string{"auto"})
		if err := parse(table, "f", src); err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("no place: %v", err)
			}
			return
		}
		for _, s := range table {
			if s.node != nil && (s.node.Line < 1 || s.node.Column < 1) {
				t.Errorf("%s is at %d:%d", s.key, s.node.Line, s.node.Column)
			}
			if s.node != nil && s.check != nil {
				if problem, _ := s.check(); problem != "" {
					t.Errorf("%s was taken: %s", s.key, problem)
				}
			}
		}
	})
}

// TestPool verifies that flags override the file per image, and zero removes an image.
func TestPool(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "pool: {python:3.11: 4, node:20: 1}")
	c, err := m.load("", map[string][]string{"pool": {"python:3.11=2", "node:20=0"}})
	checktest.Must(t, err)
	if diff := cmp.Diff(map[string]int{"python:3.11": 2}, c.Pool); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestInvalidSources verifies that the error for an invalid variable or flag has the name of this source and a hint.
func TestInvalidSources(t *testing.T) {
	t.Parallel()
	for source, values := range map[string][]string{
		"--pool": {"python", "python=", "python=-1", "python=x", "=1"}, "--allow-image": {"PYTHON"}, "--mount": {"/a"},
		"--map-image":                {"python", "=x", "x=", "UPPER=x", "x=UPPER"},
		"$WORKCELL_IMAGE_MAP":        {"python", "a=b,x=UPPER"},
		"$WORKCELL_KUBE_GUEST_IMAGE": {"UPPER"}, "$WORKCELL_KUBE_NETWORK_POLICY": {"enforce"},
		"$WORKCELL_KUBE_DENY_NETS": {"10.0.0.7", "10.0.0.0/8,x"},
	} {
		for _, value := range values {
			m := newMachine(t, whole)
			m.env[strings.TrimPrefix(source, "$")] = value
			_, err := m.load("", map[string][]string{strings.TrimPrefix(source, "--"): {value}})
			if h := hint.Of(err); h == nil || h.Kind != hint.Usage || h.Hint == "" || !strings.HasPrefix(err.Error(), source+": ") {
				t.Errorf("%s %s: %v", source, value, err)
			}
		}
	}
}

// TestServiceSecrets verifies that the values of variables within headers are removed from answers.
func TestServiceSecrets(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "services: {a: {url: https://a.example, headers: {X-A: 'a=${env.T}'}, allow: ['GET /a']}}")
	m.env["T"] = "0123456789"
	if c, err := m.load("", nil); err != nil || fmt.Sprint(c.Services[0].Secrets) != "[0123456789]" {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestMounts verifies the syntax of mounts.
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
