package session

import (
	"slices"

	"github.com/workcell-dev/workcell/backend"
)

// What a sandbox was made for is with its engine as a hash only, beside the description that the driver gives of it. A
// description is of what came of the request: an image may have another name there, a limit of the driver's is there
// though nobody asked for it.

// unknownShape stands in ConflictError.Fields for a difference that cannot be told more closely.
const unknownShape = "request"

// clashes names the fields in which a sandbox of the engine is not what a prepared request asks for; nil when it is fit
// for it.
func clashes(engine backend.Info, req Request) []string {
	if engine.Hash == req.hash() || req.AsIs && len(req.Insist) == 0 {
		return nil
	}
	made, known := madeFor(engine, req)
	var fields []string
	if known {
		fields = made.Differences(req)
	} else {
		fields = described(engine, req)
	}
	if req.AsIs {
		fields = insisted(fields, engine, req, known)
	} else if len(fields) == 0 {
		fields = []string{unknownShape}
	}
	return fields
}

// insisted gives those of the fields that the request insists on. Of limits only those count that it names.
func insisted(fields []string, engine backend.Info, req Request, known bool) []string {
	var out []string
	for _, name := range req.Insist {
		differs := slices.Contains(fields, name)
		switch {
		case name == "limits":
			differs = exceeds(req.Limits, engine.Limits)
		case known:
		case name == "image":
			differs = !sameImage(engine.Image, req.Image)
		case name == "runtime": // an engine does not tell it
			differs = true
		}
		if differs {
			out = append(out, name)
		}
	}
	return out
}

// clashes names what is known to differ from a request with another hash, when the engine has no such sandbox any more.
func (r Record) clashes(req Request) []string {
	var fields []string
	if r.User != "" && r.User != req.User {
		fields = append(fields, "user")
	}
	if r.User != "" && r.WorkspaceBytes != req.Limits.WorkspaceBytes {
		fields = append(fields, "limits")
	}
	if fields == nil {
		fields = []string{unknownShape}
	}
	return fields
}

// described gives what is known to differ by the engine's description alone.
func described(engine backend.Info, req Request) []string {
	var fields []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"user", engine.User == req.User},
		{"root", engine.Root == req.Root},
		{"limits", !exceeds(req.Limits, engine.Limits)},
		{"network", engine.Network == req.Network},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// exceeds tells whether a limit that is asked for is another one than there is.
func exceeds(asked, have backend.Limits) bool {
	return overlay(asked, have) != have
}

// overlay gives limits with those that are asked for in their place.
func overlay(asked, have backend.Limits) backend.Limits {
	a, h := limitFields(&asked), limitFields(&have)
	for i := range a {
		if *a[i] != 0 {
			*h[i] = *a[i]
		}
	}
	return have
}

func limitFields(l *backend.Limits) []*int64 {
	return []*int64{&l.CPUMillis, &l.MemoryBytes, &l.PIDs, &l.TmpBytes, &l.WorkspaceBytes, &l.OpenFiles, &l.FileBytes}
}

func sameImage(a, b string) bool {
	na, errA := backend.NormalizeImage(a)
	nb, errB := backend.NormalizeImage(b)
	return errA == nil && errB == nil && na == nb
}

// madeFor finds the request that a sandbox was made for, by its hash: what of it is not in the description is as in req, or
// was left out. False when it is neither.
func madeFor(engine backend.Info, req Request) (Request, bool) {
	const others = 4 // choices beside one for each limit
	for choices := range 1 << (others + len(limitFields(&engine.Limits))) {
		chosen := func(i int) bool { return choices&(1<<i) != 0 }
		made := req
		made.User, made.Root, made.Network, made.Limits = engine.User, engine.Root, engine.Network, engine.Limits
		if chosen(0) {
			made.Image = engine.Image
		}
		if chosen(1) {
			made.User = req.User
		}
		if chosen(2) {
			made.Env = nil
		}
		if chosen(3) {
			made.Runtime = ""
		}
		for i, limit := range limitFields(&made.Limits) {
			if chosen(others + i) {
				*limit = 0
			}
		}
		if made.hash() == engine.Hash {
			return made, true
		}
	}
	return req, false
}
