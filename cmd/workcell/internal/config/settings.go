package config

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Keys of settings, and beginnings of keys, used in several places.
const (
	keyAllowImages = "allow_images"
	keyServices    = "services"
	keyImages      = "images."
	keyLimits      = "limits."
	keyKubernetes  = "kubernetes."
)

// mappedExample is the hint for an invalid image mapping.
const mappedExample = "for example python:3.11-slim=registry.example.com/python:3.11"

// maxRetention is the maximum retention period.
const maxRetention = 10 * 365 * 24 * time.Hour

// maxNodeTimeout is the maximum time to wait for a node. The driver waits no longer for the sandbox.
const maxNodeTimeout = 30 * time.Minute

// setting is a row of the table of settings.
type setting struct {
	key      string
	to       any    // pointer to the value, for example *string, *time.Duration, or *pairs
	fallback any    // shown if it is not set; nil is the value itself
	flag     string // of the command line; empty for none
	variable string // of the environment; empty for none
	zero     bool   // the file may set it to 0
	// check returns the problem of a new value, or converts the value for Config. It may be nil.
	check    func() (problem, hint string)
	fileOnly bool          // check is only for the file: flags and variables are checked where they are used
	read     func(*reader) // converts a value of the file, and adds problems inside of it; may be nil

	origin string         // empty if it is not set
	node   *yamlnode.Node // position in the file; nil if the file does not set it
}

// pairs is a mapping in the form FROM=TO, sorted, for example the values of --map-image.
type pairs []string

// assign sets the value from a flag or variable.
func (s *setting) assign(origin string, texts []string) error {
	sources := origin
	switch to := s.to.(type) {
	case *string:
		*to = texts[0]
	case *bool:
		*to = texts[0] == "true"
	case *[]string:
		*to = texts
	case *backend.Isolation:
		if !backend.Isolation(texts[0]).AtLeast(*to) { // the flag only raises it
			return nil
		}
		*to = backend.Isolation(texts[0])
	case *pairs: // the values of all sources are combined
		*to = append(*to, texts...)
		if s.origin != "" {
			sources = s.origin + ", " + origin
		}
	}
	s.origin = sources
	if s.check != nil && !s.fileOnly {
		if problem, todo := s.check(); problem != "" {
			return hint.New(hint.Usage, fmt.Errorf("%s: %s", origin, problem), todo)
		}
	}
	return nil
}

// shown returns the setting for display.
func (s *setting) shown() Value {
	v := Value{Key: s.key, Value: s.fallback, Origin: cmp.Or(s.origin, notSet)}
	if v.Value == nil || s.origin != "" {
		v.Value = reflect.ValueOf(s.to).Elem().Interface()
	}
	return v
}

// settings returns the table of settings, in the order in which they are shown.
func (c *Config) settings(env environ.Lookup, backends []string) []*setting {
	list := []*setting{{key: "backend", to: &c.Backend, flag: "backend", variable: "WORKCELL_BACKEND", fileOnly: true,
		check: func() (string, string) {
			if !slices.Contains(backends, c.Backend) {
				return fmt.Sprintf("unknown backend %q", c.Backend), suggest.Hint(c.Backend, backends)
			}
			return "", ""
		}}}
	for _, r := range frontmatter.Runtimes() {
		image := new(string)
		list = append(list, &setting{key: keyImages + string(r), to: image, fallback: frontmatter.DefaultImage(r),
			check: func() (string, string) {
				c.Images[string(r)] = *image
				return checkImage(*image)
			}})
	}
	mapped, caches, web := new(pairs), new(pairs), map[string]serviceFile{}
	allowed, mounts := new([]string), new([]string)
	list = append(list,
		&setting{key: keyAllowImages, to: allowed, flag: "allow-image", check: func() (string, string) {
			policy, err := backend.NewImagePolicy(*allowed...)
			if err != nil {
				return err.Error(), "for example python:3.*, ghcr.io/acme/**"
			}
			c.allowed = policy
			return "", ""
		}},
		&setting{key: "map_images", to: mapped, flag: "map-image", variable: "WORKCELL_IMAGE_MAP",
			check: func() (string, string) {
				for _, pair := range *mapped {
					from, to, _ := strings.Cut(strings.TrimSpace(pair), "=")
					if from == "" || to == "" {
						return fmt.Sprintf("invalid image mapping %q: must be FROM=TO", pair), mappedExample
					}
					image, err := backend.NormalizeImage(from)
					_, other := backend.NormalizeImage(to)
					if err = cmp.Or(err, other); err != nil {
						return err.Error(), mappedExample
					}
					c.MapImages[image] = to
				}
				return "", ""
			}},
		&setting{key: "pool", to: &c.pool, flag: "pool", check: c.countPool},
		&setting{key: "mounts", to: mounts, flag: "mount", check: func() (string, string) { // a driver checks the paths
			c.Mounts = nil
			for _, text := range *mounts {
				m, err := parseMount(text)
				if err != nil {
					return err.Error(), "for example /srv/data:/data, or /srv/data:/data:rw to allow writes"
				}
				c.Mounts = append(c.Mounts, m)
			}
			return "", ""
		}},
		&setting{key: "caches", to: caches, check: func() (string, string) {
			for _, pair := range *caches {
				name, variable, _ := strings.Cut(pair, "=")
				c.Caches[name] = variable
				for _, p := range (frontmatter.Sandbox{Cache: []string{name}, Env: map[string]string{variable: ""}}).Problems() {
					return p.Message, "for example models: HF_HOME"
				}
			}
			return "", ""
		}},
		&setting{key: keyServices, to: &web, read: func(r *reader) { c.readServices(r, env, web) }},
		&setting{key: "oci_runtime", to: &c.OCIRuntime, flag: "oci-runtime"},
		&setting{key: "isolation", to: &c.Isolation, flag: "isolation", check: func() (string, string) {
			return problemOf(frontmatter.Sandbox{Isolation: c.Isolation})
		}},
	)
	list = append(list, c.limitSettings()...)
	k := &c.Kubernetes
	list = append(list,
		&setting{key: keyKubernetes + "context", to: &k.Context, variable: "WORKCELL_KUBE_CONTEXT"},
		&setting{key: keyKubernetes + "namespace", to: &k.Namespace, variable: "WORKCELL_KUBE_NAMESPACE"},
		&setting{key: keyKubernetes + "guest_image", to: &k.GuestImage, variable: "WORKCELL_KUBE_GUEST_IMAGE",
			check: func() (string, string) { return checkImage(k.GuestImage) }},
		&setting{key: keyKubernetes + "storage_class", to: &k.StorageClass, variable: "WORKCELL_KUBE_STORAGE_CLASS"},
		&setting{key: keyKubernetes + "runtime_classes", to: &k.RuntimeClasses},
		&setting{key: keyKubernetes + "image_pull_secrets", to: &k.ImagePullSecrets},
		&setting{key: keyKubernetes + "node_selector", to: (*pairs)(&k.NodeSelector)},
		&setting{key: keyKubernetes + "tolerations", to: &k.Tolerations},
		&setting{key: keyKubernetes + "priority_class", to: &k.PriorityClass},
		&setting{key: keyKubernetes + "labels", to: (*pairs)(&k.Labels)},
		&setting{key: keyKubernetes + "annotations", to: (*pairs)(&k.Annotations)},
		&setting{key: keyKubernetes + "node_timeout", to: &k.NodeTimeout, fallback: 30 * time.Second,
			check: func() (string, string) { return between("node_timeout", k.NodeTimeout, time.Second, maxNodeTimeout) }},
		&setting{key: keyKubernetes + "network_policy", to: &k.NetworkPolicy, variable: "WORKCELL_KUBE_NETWORK_POLICY",
			check: func() (string, string) {
				if k.NetworkPolicy != "enforced" {
					return fmt.Sprintf("unknown network policy %q", k.NetworkPolicy),
						"run `workcell doctor --backend kubernetes --network`, then set enforced"
				}
				return "", ""
			}},
		&setting{key: keyKubernetes + "allow_nets", to: &k.AllowNets, variable: "WORKCELL_KUBE_ALLOW_NETS",
			check: func() (string, string) { return checkNets(k.AllowNets) }},
		&setting{key: keyKubernetes + "deny_nets", to: &k.DenyNets, variable: "WORKCELL_KUBE_DENY_NETS",
			check: func() (string, string) { return checkNets(k.DenyNets) }},
		&setting{key: keyKubernetes + "dns.namespace", to: &k.DNSNamespace, fallback: "kube-system"},
		&setting{key: keyKubernetes + "dns.labels", to: (*pairs)(&k.DNSLabels), fallback: pairs{"k8s-app=kube-dns"}},
		&setting{key: keyKubernetes + "dns.port", to: &k.DNSPort, fallback: 53,
			check: func() (string, string) { return between("port", k.DNSPort, 1, math.MaxUint16) }},
	)
	retention := func(key string, to *time.Duration, least time.Duration) *setting {
		return &setting{key: key, to: to, zero: least == 0,
			check: func() (string, string) { return between(key, *to, least, maxRetention) }}
	}
	return append(list,
		c.telemetry("endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", "", checkURL),
		c.telemetry("protocol", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", func(p string) (string, string) {
			return oneOf("protocol", p, "http/protobuf", "grpc")
		}),
		c.telemetry("service_name", "OTEL_SERVICE_NAME", "workcell", func(string) (string, string) { return "", "" }),
		&setting{key: "telemetry.content", to: &c.TraceContent, flag: "trace-content"},
		retention("retention.runs", &c.KeepRuns, time.Millisecond),
		retention("retention.kept", &c.KeepSandboxes, time.Millisecond),
		retention("retention.transcripts", &c.KeepTranscripts, 0),
		&setting{key: "approvals", to: &c.Approvals, check: func() (string, string) {
			return oneOf("value", c.Approvals, "refuse", ApprovalsWait)
		}},
	)
}

// telemetry returns a setting for an OpenTelemetry variable.
func (c *Config) telemetry(name, variable, fallback string, check func(string) (problem, hint string)) *setting {
	value := new(string)
	return &setting{key: "telemetry." + name, to: value, fallback: fallback, variable: variable, fileOnly: true,
		check: func() (string, string) {
			c.Variables[variable] = *value
			return check(*value)
		}}
}

// limitSettings returns the settings for backend.LimitTable, and for the two timeouts, which are also limits in files.
func (c *Config) limitSettings() []*setting {
	var list []*setting
	for _, row := range backend.LimitTable() {
		least, most := row.Bounds()
		n, key := new(int64), keyLimits+row.Name
		list = append(list, &setting{key: key, to: n, fallback: row.Default / row.Scale, check: func() (string, string) {
			*row.Of(&c.Limits) = *n * row.Scale
			return between(key, *n, least, most)
		}})
	}
	return append(list,
		&setting{key: "limits.idle_timeout", to: &c.IdleTimeout, fallback: 15 * time.Minute, check: func() (string, string) {
			l := frontmatter.Limits{IdleTimeout: frontmatter.Duration(c.IdleTimeout)}
			return problemOf(frontmatter.Sandbox{Limits: l})
		}},
		&setting{key: "limits.exec_timeout", to: &c.ExecTimeout, fallback: 2 * time.Minute, check: func() (string, string) {
			l := frontmatter.Limits{ExecTimeout: frontmatter.Duration(c.ExecTimeout)}
			return problemOf(frontmatter.Sandbox{Limits: l})
		}})
}

// problemOf returns the first problem of a sandbox with a setting.
func problemOf(s frontmatter.Sandbox) (problem, hint string) {
	for _, p := range s.Problems() {
		return p.Message, p.Hint
	}
	return "", ""
}

// between checks a number or a duration against the allowed range.
func between[T cmp.Ordered](what string, n, least, most T) (problem, hint string) {
	if n < least || n > most {
		return fmt.Sprintf("%s must be %v to %v, not %v", what, least, most, n), ""
	}
	return "", ""
}

// oneOf checks a value against the allowed words.
func oneOf(what, value string, words ...string) (problem, hint string) {
	if slices.Contains(words, value) {
		return "", ""
	}
	return fmt.Sprintf("unknown %s %q", what, value), "available: " + strings.Join(words, ", ")
}

func checkImage(image string) (problem, hint string) {
	if _, err := backend.NormalizeImage(image); err != nil {
		return err.Error(), "for example registry.example.com/python:3.11"
	}
	return "", ""
}

// checkNets checks a list of networks.
func checkNets(nets []string) (problem, hint string) {
	for _, text := range nets {
		n, err := netip.ParsePrefix(text)
		if err != nil || n.Addr().Is4In6() {
			return fmt.Sprintf("invalid network %q", text), "for example 10.20.0.0/16 or 10.20.0.7/32"
		}
		if n != n.Masked() {
			return fmt.Sprintf("invalid network %q", text), fmt.Sprintf("did you mean %s?", n.Masked())
		}
	}
	return "", ""
}

// maxPool is the maximum number of pooled sandboxes per image.
const maxPool = 1000

// countPool sets Pool. Later counts override earlier counts, and zero removes an image.
func (c *Config) countPool() (problem, hint string) {
	for _, pair := range c.pool {
		image, n, _ := strings.Cut(pair, "=")
		if problem, hint := checkImage(image); problem != "" {
			return problem, hint
		}
		count, err := strconv.Atoi(n)
		if err != nil || count < 0 || count > maxPool {
			return fmt.Sprintf("the number of sandboxes of %s must be 0 to %d, not %q", image, maxPool, n),
				fmt.Sprintf("for example %s=4", image)
		}
		if c.Pool[image] = count; count == 0 {
			delete(c.Pool, image)
		}
	}
	return "", ""
}

// parseMount parses SOURCE:TARGET with an optional third part. Without it, the mount is read-only.
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

func checkURL(text string) (problem, hint string) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		// not quoted, because it may contain a password.
		return "the endpoint is not an http or https URL", "for example http://localhost:4318"
	}
	return "", ""
}

// below returns the names of the keys directly below prefix, for example "runs" and "kept" below "retention.". prefix is
// empty or ends with a dot.
func below(table []*setting, prefix string) []string {
	names := map[string]bool{}
	for _, s := range table {
		if rest, ok := strings.CutPrefix(s.key, prefix); ok {
			name, _, _ := strings.Cut(rest, ".")
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
