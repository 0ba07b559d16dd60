package sandbox

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// policyDigits is how many hexadecimal digits of the digest results have.
const policyDigits = 12

// Settings are the settings in force for a command. Missing settings are omitted in JSON, so that a new field does not
// change the digests of other sandboxes.
type Settings struct {
	Backend      string              `json:"backend"`
	Isolation    backend.Isolation   `json:"isolation"`
	OCIRuntime   string              `json:"oci_runtime,omitempty"` // as requested
	Image        string              `json:"image"`
	User         string              `json:"user"`
	WritableRoot bool                `json:"writable_root,omitempty"`
	Limits       backend.Limits      `json:"limits"`
	Network      backend.NetworkMode `json:"network"`
	Egress       Egress              `json:"egress,omitzero"`
	Mounts       []backend.Mount     `json:"mounts,omitempty"` // including caches
	Environment  Environment         `json:"environment,omitzero"`

	// Tools is the SHA-256 of the definitions of the command's host tools.
	Tools string `json:"tools,omitempty"`
}

// Evidence identifies a command's isolation and settings in its result.
type Evidence struct {
	Isolation backend.Isolation `json:"isolation" jsonschema:"enum=process,enum=container,enum=kernel,enum=vm"`
	Backend   string            `json:"backend"`
	Policy    string            `json:"policy"` // the first 12 digits of Settings.Digest
}

// canonical returns the settings as JSON (RFC 8785): keys are sorted, and there is no white space. Lists whose order
// has no meaning are sorted.
func (s Settings) canonical() []byte {
	s.Egress.Allow = slices.Sorted(slices.Values(s.Egress.Allow))
	s.Egress.Deny = slices.Sorted(slices.Values(s.Egress.Deny))
	s.Mounts = slices.SortedFunc(slices.Values(s.Mounts), func(a, b backend.Mount) int {
		return cmp.Or(strings.Compare(a.Target, b.Target), strings.Compare(a.Source, b.Source))
	})
	raw, err := sanitize.JSON(s)
	decode, value := json.NewDecoder(bytes.NewReader(raw)), any(nil)
	decode.UseNumber()
	if err = cmp.Or(err, decode.Decode(&value)); err == nil {
		raw, err = sanitize.JSON(value) // of maps, whose keys are sorted
	}
	if err != nil {
		panic("sandbox: settings that cannot be encoded: " + err.Error()) // only strings and numbers: a bug in this file
	}
	return raw
}

// Digest returns the SHA-256 of the settings as canonical JSON (RFC 8785), in hexadecimal.
func (s Settings) Digest() string {
	sum := sha256.Sum256(s.canonical())
	return hex.EncodeToString(sum[:])
}

// Evidence returns the summary of the settings for results.
func (s Settings) Evidence() Evidence {
	return Evidence{Isolation: s.Isolation, Backend: s.Backend, Policy: s.Digest()[:policyDigits]}
}

// Note adds the settings to an audit record, unless they are unknown.
func (s Settings) Note(r *audit.Record) {
	if s.Backend == "" {
		return
	}
	r.Isolation, r.Backend, r.Policy, r.Settings = string(s.Isolation), s.Backend, s.Digest(), s.canonical()
}

// Settings returns the settings in force, without the host tools of a command.
func (s *Sandbox) Settings() Settings {
	if s.o.Settings == nil {
		return Settings{}
	}
	return s.o.Settings()
}

// noteSettings adds the settings of a command to a record.
func (s *Sandbox) noteSettings(r *audit.Record, tools string) {
	in := s.Settings()
	in.Tools = tools
	in.Note(r)
}
