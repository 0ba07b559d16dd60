package session

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/record"
)

// unknownShape is the entry in ConflictError.Fields for an unknown difference.
const unknownShape = "request"

// shape contains the fields of a prepared request for the sandbox's configuration. The record holds it as JSON. The
// engine holds a hash of the JSON in a label, for sandboxes without a record. All users of the engine can read the
// label. Therefore shape contains the names of environment variables but not the values, to prevent users from guessing
// a short secret.
type shape struct {
	Image      string              `json:"image"`
	User       string              `json:"user"`
	Root       backend.RootMode    `json:"root,omitempty"`
	Env        []string            `json:"env,omitempty"`
	Limits     backend.Limits      `json:"limits,omitzero"`
	Network    backend.NetworkMode `json:"network"`
	OCIRuntime string              `json:"oci_runtime,omitempty"`
	Egress     sandbox.Egress      `json:"egress,omitzero"`

	Environment Environment     `json:"environment,omitzero"`
	Mounts      []backend.Mount `json:"mounts,omitempty"`
	Caches      []string        `json:"caches,omitempty"`
}

func (r Request) shape() shape {
	return shape{
		r.Image, r.User, r.Root, slices.Sorted(maps.Keys(r.Env)), r.Limits, r.Network, r.OCIRuntime, r.Egress,
		r.Environment, r.Mounts, r.Caches,
	}
}

// encode returns the shape as JSON for a record.
func (s shape) encode() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic("session: a request that cannot be encoded: " + err.Error()) // only strings and numbers, so this is a bug here
	}
	return string(text)
}

// decodeShape decodes the shape of a record. If the text is empty or invalid, it returns false.
func decodeShape(text string) (s shape, ok bool) {
	return s, text != "" && json.Unmarshal([]byte(text), &s) == nil
}

// hash returns an identifier of the shape for processes without a record of the sandbox.
func (s shape) hash() string {
	sum := sha256.Sum256([]byte(s.encode()))
	return hex.EncodeToString(sum[:16])
}

// differences returns the names of the differing fields.
func (s shape) differences(other shape) []string {
	return named([]field{
		{"image", s.Image == other.Image},
		{"user", s.User == other.User},
		{"root", s.Root == other.Root},
		{"env", slices.Equal(s.Env, other.Env)},
		{"limits", s.Limits == other.Limits},
		{"network", s.Network == other.Network && s.Egress.Equal(other.Egress)},
		{"oci_runtime", s.OCIRuntime == other.OCIRuntime},
		{"environment", s.Environment.Equal(other.Environment)},
		{"mounts", slices.Equal(s.Mounts, other.Mounts)},
		{"cache", slices.Equal(s.Caches, other.Caches)},
	})
}

// Differences returns the names of the configuration fields that differ. It also compares the values of environment
// variables. It compares defaults only if a manager has prepared both requests.
func (r Request) Differences(other Request) []string {
	fields := r.shape().differences(other.shape())
	if !maps.Equal(r.Env, other.Env) && !slices.Contains(fields, "env") {
		fields = append(fields, "env")
	}
	return fields
}

// field is one of ConflictError.Fields. same is true if both requests have the same value.
type field struct {
	name string
	same bool
}

// named returns the names of the differing fields.
func named(fields []field) (names []string) {
	for _, f := range fields {
		if !f.same {
			names = append(names, f.name)
		}
	}
	return names
}

// conflicts returns the names of the fields in which a sandbox differs from a prepared request. It returns nil if the
// sandbox matches. made is the recorded request of the sandbox.
func conflicts(made string, engine backend.Info, req Request) []string {
	if req.Mode == OpenAsIs && len(req.Match) == 0 {
		return nil
	}
	had, known := decodeShape(made)
	var fields []string
	switch {
	case known:
		fields = had.differences(req.shape())
	case engine.Hash == req.shape().hash():
		return nil
	default:
		fields = described(engine, req)
	}
	if req.Mode == OpenAsIs {
		return mismatches(fields, engine, req, known)
	}
	if len(fields) == 0 && !known {
		fields = []string{unknownShape}
	}
	return fields
}

// mismatches returns the differing fields listed in req.Match. It compares only limits set in the request.
func mismatches(fields []string, engine backend.Info, req Request, known bool) []string {
	var out []string
	for _, name := range req.Match {
		differs := slices.Contains(fields, name)
		switch {
		case name == "limits":
			differs = req.asked.Merge(engine.Limits) != engine.Limits
		case known:
		case name == "image":
			differs = !sameImage(engine.Image, req.Image)
		case name == "oci_runtime", name == "environment", name == "cache": // no engine reports it
			differs = true
		}
		if differs {
			out = append(out, name)
		}
	}
	return out
}

// described compares a request with the engine's description and returns the certainly differing fields. The
// description shows the result of the request: for example, an image may have another name, and the driver may have
// added other limits.
func described(engine backend.Info, req Request) []string {
	mounts, _ := splitMounts(engine.Mounts) // mounts does not include an empty cache
	return named([]field{
		{"user", engine.User == req.User},
		{"root", engine.Root == req.Root},
		{"limits", req.Limits.Merge(engine.Limits) == engine.Limits}, // only the limits set in the request
		{"network", engine.Network == req.Network},
		{"mounts", len(mounts) == len(req.Mounts)},
	})
}

func sameImage(a, b string) bool {
	na, errA := backend.NormalizeImage(a)
	nb, errB := backend.NormalizeImage(b)
	return errA == nil && errB == nil && na == nb
}

// gone returns a ConflictError if a sandbox missing on the engine was created with a configuration other than in req.
func gone(r record.Record, req Request) error {
	had, known := decodeShape(r.Request)
	fields := had.differences(req.shape())
	switch {
	case !known:
		fields = []string{unknownShape}
	case req.Mode == OpenAsIs:
		fields = mismatches(fields, backend.Info{Limits: had.Limits}, req, true)
	}
	if fields == nil {
		return nil
	}
	return &ConflictError{Key: r.Key, Fields: fields, Gone: true}
}

// asWas returns an OpenAsIs request with the record's fields, except the fields in Match. Other programs may write to
// the store's database, so the request must include the recorded mounts, OCI runtime, and network as well. beyond names
// the recorded fields missing in the request; the requested values apply to them. A run's network is never in beyond,
// because configuration files specify it: the requested network applies.
func asWas(r record.Record, req Request) (_ Request, beyond []string) {
	had, known := decodeShape(r.Request)
	if req.Mode != OpenAsIs || !known {
		return req, nil
	}
	own := slices.Clone(req.Match)
	for _, f := range []field{
		{"mounts", within(had.Mounts, req.Mounts)},
		{"oci_runtime", had.OCIRuntime == "" || had.OCIRuntime == req.OCIRuntime},
		{"network", had.Network == backend.NetworkNone && had.Egress.IsZero() ||
			had.Network == req.Network && had.Egress.Equal(req.Egress)},
	} {
		if f.same || slices.Contains(req.Match, f.name) {
			continue
		}
		if own = append(own, f.name); r.Key.Namespace == record.NamespaceUser || f.name != "network" {
			beyond = append(beyond, f.name)
		}
	}
	req.Image = pick(own, "image", req.Image, had.Image)
	req.User = pick(own, "user", req.User, had.User)
	req.Root = pick(own, "root", req.Root, had.Root)
	req.Network = pick(own, "network", req.Network, had.Network)
	req.Egress = pick(own, "network", req.Egress, had.Egress)
	req.Environment = pick(own, "environment", req.Environment, had.Environment)
	req.Mounts = pick(own, "mounts", req.Mounts, had.Mounts)
	req.Caches = pick(own, "cache", req.Caches, had.Caches)
	req.Limits = pick(own, "limits", req.asked.Merge(had.Limits), had.Limits)
	return req, beyond
}

// pick returns asked if own lists the field. Otherwise it returns had.
func pick[T any](own []string, field string, asked, had T) T {
	if slices.Contains(own, field) {
		return asked
	}
	return had
}

// within reports whether others contains all mounts.
func within(mounts, others []backend.Mount) bool {
	return !slices.ContainsFunc(mounts, func(m backend.Mount) bool { return !slices.Contains(others, m) })
}
