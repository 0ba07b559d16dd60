package config

import (
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// Keys of settings that have a name in Go; those of limits and images are made of the tables that have them.
const (
	keyBackend       = "backend"
	keyOCIRuntime    = "oci_runtime"
	keyAllowImages   = "allow_images"
	keyMapImages     = "map_images"
	keyPool          = "pool"
	keyMounts        = "mounts"
	keyCaches        = "caches"
	keyImages        = "images."
	keyLimits        = "limits."
	keyIdleTimeout   = keyLimits + "idle_timeout"
	keyExecTimeout   = keyLimits + "exec_timeout"
	keyContent       = "telemetry.content"
	keyTelemetry     = "telemetry."
	keyRetentionRuns = "retention.runs"
	keyRetentionKept = "retention.kept"
	keyKubernetes    = "kubernetes."
)

// maxRetention bounds how long something is kept.
const maxRetention = 10 * 365 * 24 * time.Hour

// setting is a row of the table of settings.
type setting struct {
	key      string
	fallback any    // the default; its type is the setting's: string, int64, bool, time.Duration, []string or pairs
	flag     string // of the command line; empty for none
	variable string // of the environment; empty for none
	what     string // for people
	counts   bool   // pairs whose second is a whole number
	check    func(value any) (problem, hint string)
	// project returns why a file in the working directory may not set value; under is what holds without it. Nil refuses
	// every value.
	project func(c *Config, value any, under Value) string
}

// pairs is a mapping as FROM=TO, in the order of the file.
type pairs []string

// settings returns the table of settings, in the order in which they are shown.
func settings(backends []string) []setting {
	list := []setting{{
		key: keyBackend, fallback: "auto", flag: "backend", variable: "WORKCELL_BACKEND", what: "backend that runs sandboxes",
		check: func(v any) (string, string) {
			if name := v.(string); !slices.Contains(backends, name) {
				return fmt.Sprintf("unknown backend %q", name), suggest.Hint(name, backends)
			}
			return "", ""
		},
	}}
	for _, r := range frontmatter.Runtimes() {
		list = append(list, setting{
			key: keyImages + string(r), fallback: frontmatter.DefaultImage(r), what: "image of sandboxes for " + string(r) + " that set none",
			check: checkImage, project: allowedByOperator,
		})
	}
	list = append(list,
		setting{key: keyAllowImages, fallback: []string(nil), flag: "allow-image", what: "patterns of allowed images; default: all",
			check:   checkPatterns,
			project: func(*Config, any, Value) string { return "" }}, // another list beside the operator's: it can only refuse more
		setting{key: keyMapImages, fallback: pairs(nil), flag: "map-image", variable: "WORKCELL_IMAGE_MAP",
			what: "images to use instead of others", check: checkPairs},
		setting{key: keyPool, fallback: pairs(nil), flag: "pool", counts: true, what: "number of sandboxes that servers create in advance, by image", check: checkCounts},
		setting{key: keyMounts, fallback: []string(nil), flag: "mount", what: "host directories to mount in sandboxes", check: checkMounts},
		setting{key: keyCaches, fallback: pairs(nil), what: "custom caches, by name, with the environment variable of each", check: checkCaches},
		setting{key: keyOCIRuntime, fallback: "", flag: "oci-runtime", what: "OCI runtime of sandboxes; empty: the engine's default"},
	)
	list = append(list, limitSettings()...)
	list = append(list,
		setting{key: keyKubernetes + "context", fallback: "", variable: "WORKCELL_KUBE_CONTEXT", what: "context of the kubeconfig; empty: the current context"},
		setting{key: keyKubernetes + "namespace", fallback: "", variable: "WORKCELL_KUBE_NAMESPACE", what: "namespace of sandboxes; empty: the context's"},
		setting{key: keyKubernetes + "guest_image", fallback: "", variable: "WORKCELL_KUBE_GUEST_IMAGE",
			what: "image with the guest agent for pods (workcell guest image); empty: each image has it", check: checkImage},
		setting{key: keyKubernetes + "storage_class", fallback: "", variable: "WORKCELL_KUBE_STORAGE_CLASS",
			what: "storage class of workspaces; empty: files are lost when a sandbox stops"},
		setting{key: keyKubernetes + "runtime_classes", fallback: []string(nil), what: "RuntimeClasses that can be used as OCI runtimes"},
		setting{key: keyKubernetes + "network_policy", fallback: "", variable: "WORKCELL_KUBE_NETWORK_POLICY",
			what: "enforced: the cluster enforces NetworkPolicies; without it no sandbox is created",
			check: func(v any) (string, string) {
				if v != "enforced" {
					return fmt.Sprintf("unknown network policy %q", v),
						"run `workcell doctor --backend kubernetes --network`, then set enforced"
				}
				return "", ""
			}},
	)
	positive := func(v any) (string, string) {
		if d := v.(time.Duration); d <= 0 || d > maxRetention {
			return fmt.Sprintf("%v is out of range", d), "from 1s to " + maxRetention.String()
		}
		return "", ""
	}
	return append(list,
		setting{key: keyTelemetry + "endpoint", fallback: "", variable: "OTEL_EXPORTER_OTLP_ENDPOINT", what: "address to send traces to; empty: none", check: checkURL},
		setting{key: keyTelemetry + "protocol", fallback: "http/protobuf", variable: "OTEL_EXPORTER_OTLP_PROTOCOL", what: "http/protobuf or grpc",
			check: func(v any) (string, string) {
				if p := v.(string); p != "grpc" && p != "http/protobuf" {
					return fmt.Sprintf("unknown protocol %q", p), "available: http/protobuf, grpc"
				}
				return "", ""
			}},
		setting{key: keyTelemetry + "service_name", fallback: "workcell", variable: "OTEL_SERVICE_NAME", what: "service name in traces"},
		setting{key: keyContent, fallback: false, flag: "trace-content", what: "whether traces contain prompts, answers, and other content"},
		setting{key: keyRetentionRuns, fallback: 30 * 24 * time.Hour, what: "how long the journals of finished runs are kept", check: positive},
		setting{key: keyRetentionKept, fallback: 7 * 24 * time.Hour, what: "how long the sandboxes of --keep are kept", check: positive},
	)
}

// limitSettings returns the rows of backend.LimitTable and the two times that files call limits.
func limitSettings() []setting {
	var list []setting
	for _, row := range backend.LimitTable() {
		least, most := row.Bounds()
		list = append(list, setting{
			key: keyLimits + row.Name, fallback: row.Default / row.Scale, what: row.What, project: lower,
			check: func(v any) (string, string) {
				if n := v.(int64); n < least || n > most {
					return fmt.Sprintf("%s%s is %d, it must be %d to %d", keyLimits, row.Name, n, least, most), ""
				}
				return "", ""
			},
		})
	}
	for _, t := range []struct {
		key, what string
		fallback  time.Duration
		limits    func(frontmatter.Duration) frontmatter.Limits
	}{
		{keyIdleTimeout, "idle time after which a sandbox is closed", 15 * time.Minute, func(d frontmatter.Duration) frontmatter.Limits { return frontmatter.Limits{IdleTimeout: d} }},
		{keyExecTimeout, "default time limit of a command", 2 * time.Minute, func(d frontmatter.Duration) frontmatter.Limits { return frontmatter.Limits{ExecTimeout: d} }},
	} {
		list = append(list, setting{key: t.key, fallback: t.fallback, what: t.what, project: lower, check: func(v any) (string, string) {
			d := v.(time.Duration)
			if d == 0 {
				return t.key + " is 0", "remove it to use the default"
			}
			for _, p := range (frontmatter.Sandbox{Limits: t.limits(frontmatter.Duration(d))}).Problems() {
				return p.Message, p.Hint
			}
			return "", ""
		}})
	}
	return list
}

// lower lets a file in the working directory only ask for less. A default of zero is no bound.
func lower(_ *Config, value any, under Value) string {
	lowered := true
	switch was := under.Value.(type) {
	case int64:
		lowered = was == 0 || value.(int64) <= was
	case time.Duration:
		lowered = value.(time.Duration) <= was
	}
	if !lowered {
		return fmt.Sprintf("may only be lowered here, from %v (%s)", under.Value, under.Origin)
	}
	return ""
}

// allowedByOperator lets a file in the working directory choose among the images of the operator's list.
func allowedByOperator(c *Config, value any, _ Value) string {
	lists := c.Allowed()
	if len(lists) == 0 {
		return "may only be set here if the operator sets allow_images"
	}
	for _, l := range lists {
		if l.policy.Check(value.(string)) != nil {
			return fmt.Sprintf("may only be an image that %s allows (%s)", keyAllowImages, l.Origin)
		}
	}
	return ""
}

func checkImage(v any) (string, string) {
	if _, err := backend.NormalizeImage(v.(string)); err != nil {
		return err.Error(), "for example registry.example.com/python:3.11"
	}
	return "", ""
}

func checkPatterns(v any) (string, string) {
	if _, err := backend.NewImagePolicy(v.([]string)...); err != nil {
		return err.Error(), "for example python:3.*, ghcr.io/acme/**"
	}
	return "", ""
}

func checkPairs(v any) (string, string) {
	for _, pair := range v.(pairs) {
		from, to, _ := strings.Cut(pair, "=")
		for _, image := range []string{from, to} {
			if problem, hint := checkImage(image); problem != "" {
				return problem, hint
			}
		}
	}
	return "", ""
}

// maxPool is how many sandboxes of an image can be kept ready.
const maxPool = 1000

func checkCounts(v any) (string, string) {
	counts, _ := v.(pairs)
	for _, pair := range counts {
		image, n, _ := strings.Cut(pair, "=")
		if problem, hint := checkImage(image); problem != "" {
			return problem, hint
		}
		if count, err := strconv.Atoi(n); err != nil || count < 0 || count > maxPool {
			return fmt.Sprintf("%s=%s is out of range", image, n), fmt.Sprintf("from 0 to %d sandboxes of an image, as %s=4", maxPool, image)
		}
	}
	return "", ""
}

// checkCaches refuses what is no mapping of names to variables, by the rules of a package that it does not know.
func checkCaches(v any) (string, string) {
	own, _ := v.(pairs)
	for _, pair := range own {
		name, variable, _ := strings.Cut(pair, "=")
		for _, p := range (frontmatter.Sandbox{Cache: []string{name}, Env: map[string]string{variable: ""}}).Problems() {
			return p.Message, "for example models: HF_HOME"
		}
	}
	return "", ""
}

// checkMounts refuses what is no list of mounts; where they may lead a driver says.
func checkMounts(v any) (string, string) {
	list, _ := v.([]string)
	for _, text := range list {
		if _, err := parseMount(text); err != nil {
			return err.Error(), "for example /srv/data:/data, or /srv/data:/data:rw to allow writes"
		}
	}
	return "", ""
}

// parseMount reads SOURCE:TARGET, which is read-only, or with an option.
func parseMount(text string) (m backend.Mount, err error) {
	source, rest, _ := strings.Cut(text, ":")
	target, option, _ := strings.Cut(rest, ":")
	switch option {
	case "rw":
		m.Writable = true
	case "", "ro":
	default:
		return m, fmt.Errorf("%.100q: a mount must be ro or rw", text)
	}
	if !path.IsAbs(source) || !path.IsAbs(target) {
		return m, fmt.Errorf("%.100q must be SOURCE:TARGET with absolute paths", text)
	}
	m.Source, m.Target = path.Clean(source), path.Clean(target)
	return m, nil
}

func checkURL(v any) (string, string) {
	u, err := url.Parse(v.(string))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "the endpoint is not an http or https URL", "for example http://localhost:4318" // not quoted: it may hold a password
	}
	return "", ""
}

// below returns the names of the keys directly below prefix, which is empty or ends in a dot.
func below(table []setting, prefix string) []string {
	names := map[string]bool{}
	for _, s := range table {
		if rest, ok := strings.CutPrefix(s.key, prefix); ok {
			name, _, _ := strings.Cut(rest, ".")
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
