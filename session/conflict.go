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

// unknownShape stands in ConflictError.Fields for a difference that is not known more closely.
const unknownShape = "request"

// shape is the part of a prepared request that shapes the sandbox itself. The record holds it as JSON, and the engine a
// hash of that for sandboxes that have no record. Anybody with the engine can read the label, so it covers the names of
// the environment but not the values: those may be secrets short enough to guess.
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
	return shape{r.Image, r.User, r.Root, slices.Sorted(maps.Keys(r.Env)), r.Limits, r.Network, r.OCIRuntime, r.Egress, r.Environment, r.Mounts, r.Caches}
}

// encode returns the shape as a record holds it.
func (s shape) encode() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic("session: a request that cannot be encoded: " + err.Error()) // only strings and numbers: a bug in this file
	}
	return string(text)
}

// decodeShape returns what a record holds; false when that is nothing, or nothing that can be read.
func decodeShape(text string) (s shape, ok bool) {
	return s, text != "" && json.Unmarshal([]byte(text), &s) == nil
}

// hash identifies the shape for processes that have no record of the sandbox.
func (s shape) hash() string {
	sum := sha256.Sum256([]byte(s.encode()))
	return hex.EncodeToString(sum[:16])
}

// differences names the fields that differ.
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

// Differences names the fields that shape the sandbox and differ, values of variables included. What a manager fills in
// counts only in requests that it has prepared.
func (r Request) Differences(other Request) []string {
	fields := r.shape().differences(other.shape())
	if !maps.Equal(r.Env, other.Env) && !slices.Contains(fields, "env") {
		fields = append(fields, "env")
	}
	return fields
}

// field is one of ConflictError.Fields, and whether it is the same.
type field struct {
	name string
	same bool
}

// named returns the names of the fields that differ.
func named(fields []field) (names []string) {
	for _, f := range fields {
		if !f.same {
			names = append(names, f.name)
		}
	}
	return names
}

// conflicts names the fields in which a sandbox is not what a prepared request asks for; nil when it is fit for it.
// made is what it was made for by its record.
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

// mismatches returns those of the fields that the request wants to match. Of limits only those count that it names.
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

// described names what is known to differ by the engine's description alone. That is of what came of the request: an
// image may have another name there, a limit of the driver's is there though nobody asked for it.
func described(engine backend.Info, req Request) []string {
	mounts, _ := splitMounts(engine.Mounts) // a cache that was empty is not among them
	return named([]field{
		{"user", engine.User == req.User},
		{"root", engine.Root == req.Root},
		{"limits", req.Limits.Merge(engine.Limits) == engine.Limits}, // those that are asked for
		{"network", engine.Network == req.Network},
		{"mounts", len(mounts) == len(req.Mounts)},
	})
}

func sameImage(a, b string) bool {
	na, errA := backend.NormalizeImage(a)
	nb, errB := backend.NormalizeImage(b)
	return errA == nil && errB == nil && na == nb
}

// gone returns a ConflictError when a sandbox that the engine does not have any more was made for something else than
// req.
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

// asWas returns an OpenAsIs request with the record's fields, except those in Match. Other programs may write to the
// store's database, so mounts, the OCI runtime and the network must be in the request as well. beyond names those that
// are not, which stay as requested. For the sandbox of a run, the requested network is then used, because files name
// it.
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

// pick returns asked if the request decides about a field.
func pick[T any](own []string, field string, asked, had T) T {
	if slices.Contains(own, field) {
		return asked
	}
	return had
}

// within reports whether all mounts are among others.
func within(mounts, others []backend.Mount) bool {
	return !slices.ContainsFunc(mounts, func(m backend.Mount) bool { return !slices.Contains(others, m) })
}
