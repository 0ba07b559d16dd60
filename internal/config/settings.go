package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// Keys of settings that have a name in Go; those of limits and images are made of the tables that have them.
const (
	keyBackend       = "backend"
	keyAllowImages   = "allow_images"
	keyMapImages     = "map_images"
	keyImages        = "images."
	keyLimits        = "limits."
	keyIdleTimeout   = keyLimits + "timeout_seconds"
	keyExecTimeout   = keyLimits + "exec_timeout_seconds"
	keyContent       = "telemetry.content"
	keyTelemetry     = "telemetry."
	keyRetentionRuns = "retention.runs"
	keyRetentionKept = "retention.kept"
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
		key: keyBackend, fallback: "auto", flag: "backend", variable: "WORKCELL_BACKEND", what: "what runs the sandboxes",
		check: func(v any) (string, string) {
			if name := v.(string); !slices.Contains(backends, name) {
				return fmt.Sprintf("unknown backend %q", name), suggest.Hint(name, backends)
			}
			return "", ""
		},
	}}
	for _, r := range frontmatter.Runtimes() {
		list = append(list, setting{
			key: keyImages + string(r), fallback: frontmatter.DefaultImage(r), what: "image of sandboxes for " + string(r) + " that name none",
			check: checkImage, project: allowedByOperator,
		})
	}
	list = append(list,
		setting{key: keyAllowImages, fallback: []string(nil), flag: "allow-image", what: "patterns of the images that may be used; without it all",
			check:   checkPatterns,
			project: func(*Config, any, Value) string { return "" }}, // another list beside the operator's: it can only refuse more
		setting{key: keyMapImages, fallback: pairs(nil), flag: "map-image", variable: "WORKCELL_IMAGE_MAP",
			what: "images to use where others are asked for", check: checkPairs},
	)
	list = append(list, limitSettings()...)
	positive := func(v any) (string, string) {
		if d := v.(time.Duration); d <= 0 || d > maxRetention {
			return fmt.Sprintf("%v is out of range", d), "from 1s to " + maxRetention.String()
		}
		return "", ""
	}
	return append(list,
		setting{key: keyTelemetry + "endpoint", fallback: "", variable: "OTEL_EXPORTER_OTLP_ENDPOINT", what: "where traces go; empty is nowhere", check: checkURL},
		setting{key: keyTelemetry + "protocol", fallback: "http/protobuf", variable: "OTEL_EXPORTER_OTLP_PROTOCOL", what: "http/protobuf or grpc",
			check: func(v any) (string, string) {
				if p := v.(string); p != "grpc" && p != "http/protobuf" {
					return fmt.Sprintf("unknown protocol %q", p), "known are http/protobuf, grpc"
				}
				return "", ""
			}},
		setting{key: keyTelemetry + "service_name", fallback: "workcell", variable: "OTEL_SERVICE_NAME", what: "the service that traces are of"},
		setting{key: keyContent, fallback: false, flag: "trace-content", what: "whether traces hold prompts, answers and the like"},
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
		fallback  int64
		limits    func(int64) frontmatter.Limits
	}{
		{keyIdleTimeout, "idle time after which a sandbox is closed", 900, func(n int64) frontmatter.Limits { return frontmatter.Limits{TimeoutSeconds: n} }},
		{keyExecTimeout, "time limit of a command that names none", 120, func(n int64) frontmatter.Limits { return frontmatter.Limits{ExecTimeoutSeconds: n} }},
	} {
		list = append(list, setting{key: t.key, fallback: t.fallback, what: t.what, project: lower, check: func(v any) (string, string) {
			if v.(int64) == 0 {
				return t.key + " is 0", "leave it out for the default"
			}
			for _, p := range (frontmatter.Sandbox{Limits: t.limits(v.(int64))}).Problems() {
				return p.Message, p.Hint
			}
			return "", ""
		}})
	}
	return list
}

// lower lets a file in the working directory only ask for less. A default of zero is no bound.
func lower(_ *Config, value any, under Value) string {
	if was := under.Value.(int64); was != 0 && value.(int64) > was {
		return fmt.Sprintf("may only be lowered here, from %d (%s)", was, under.Origin)
	}
	return ""
}

// allowedByOperator lets a file in the working directory choose among the images of the operator's list.
func allowedByOperator(c *Config, value any, _ Value) string {
	lists := c.Allowed()
	if len(lists) == 0 {
		return "may only be set here where the operator has a list of allow_images"
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

func checkURL(v any) (string, string) {
	u, err := url.Parse(v.(string))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "the endpoint is no http or https address", "for example http://localhost:4318" // not quoted: it may hold a password
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
