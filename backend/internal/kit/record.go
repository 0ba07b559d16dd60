package kit

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// Record is a driver's data for a sandbox in addition to the labels, as JSON.
type Record struct {
	Image     string              `json:"image"`
	User      string              `json:"user"`
	Root      backend.RootMode    `json:"root"`
	Network   backend.NetworkMode `json:"network"`
	Limits    backend.Limits      `json:"limits"`
	Workspace backend.Enforcement `json:"workspace,omitempty"`
	RootBytes int64               `json:"root_bytes,omitempty"` // the limit passed to the guest agent
	Ephemeral bool                `json:"ephemeral,omitempty"`
	// OrphanTimeout is Spec.OrphanTimeout.
	OrphanTimeout time.Duration `json:"orphan_timeout,omitempty"`

	// Isolation is empty in records of earlier versions.
	Isolation backend.Isolation `json:"isolation,omitempty"`

	Recipe string          `json:"recipe,omitempty"` // Spec.Environment
	Mounts []backend.Mount `json:"mounts,omitempty"`
}

// Record returns the record of a planned sandbox. e is the enforcement of the workspace limit.
func (p *Plan) Record(e backend.Enforcement) Record {
	return Record{
		Image: p.Spec.Image, User: p.User.String(), Root: p.Spec.Root, Network: p.Spec.Network, Limits: p.Spec.Limits,
		Workspace: e, RootBytes: p.Root, Ephemeral: p.Spec.Ephemeral, OrphanTimeout: p.Spec.OrphanTimeout,
		Isolation: p.Isolation, Recipe: p.Spec.Environment, Mounts: p.Spec.Mounts,
	}
}

// Sized returns the size of the workspace's file system, or 0 if the workspace has no separate file system.
func (r *Record) Sized() int64 {
	if r.Workspace != backend.WorkspaceSized {
		return 0
	}
	return r.Limits.WorkspaceBytes
}

// Labels returns the labels of an object of the sandbox.
func (p *Plan) Labels(role string) map[string]string {
	return map[string]string{
		backend.LabelRole:     role,
		backend.LabelInstance: p.Spec.Instance,
		backend.LabelID:       p.Spec.ID,
		backend.LabelKey:      p.Spec.Key,
		backend.LabelRun:      p.Spec.Run,
		backend.LabelCreated:  p.Spec.Created.UTC().Format(time.RFC3339Nano),
	}
}

// SandboxLabels returns the labels of the sandbox's container. It sets all of them, because an engine may copy missing
// labels from the image.
func (p *Plan) SandboxLabels(guest string) map[string]string {
	l := p.Labels(backend.RoleSandbox)
	l[backend.LabelSpec], l[backend.LabelGuest] = p.Spec.Hash, guest
	return l
}

// Info describes the sandbox with these labels, except for the fields known only to the engine. user contains the
// user's labels.
func (r *Record) Info(labels, user map[string]string) backend.Info {
	info := backend.Info{
		SessionID: labels[backend.LabelID],
		Instance:  labels[backend.LabelInstance],
		Key:       labels[backend.LabelKey],
		Run:       labels[backend.LabelRun],
		Hash:      labels[backend.LabelSpec],
		Image:     r.Image,
		User:      r.User,
		Root:      r.Root,
		Isolation: cmp.Or(r.Isolation, backend.IsolationProcess),
		Network:   r.Network,
		Mounts:    r.Mounts,
		Limits:    r.Limits,
		Workspace: r.Workspace,
		RootBytes: r.RootBytes,
		Ephemeral: r.Ephemeral,
		Labels:    map[string]string{},
	}
	maps.Copy(info.Labels, user)
	if r.RootBytes > 0 {
		info.RootEnforcement = backend.WorkspaceWatched
	}
	if t, err := time.Parse(time.RFC3339Nano, labels[backend.LabelCreated]); err == nil {
		info.Created = t
	}
	return info
}

// Select returns the sandboxes matching a filter, oldest first, in the form of [backend.SandboxBackend.List]. It
// changes infos.
func Select(infos []backend.Info, f backend.Filter) []backend.Info {
	infos = slices.DeleteFunc(infos, func(i backend.Info) bool { return !matches(f, &i) })
	for i := range infos {
		infos[i].ImageEnv = nil
	}
	slices.SortFunc(infos, func(a, b backend.Info) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return infos
}

func matches(f backend.Filter, i *backend.Info) bool {
	return (f.Instance == "" || f.Instance == i.Instance) && (f.SessionID == "" || f.SessionID == i.SessionID) &&
		(f.Key == "" || f.Key == i.Key) && (f.Run == "" || f.Run == i.Run)
}

// FilterLabels returns the common labels of all sandboxes matching a filter.
func FilterLabels(f backend.Filter) map[string]string {
	l := map[string]string{
		backend.LabelRole: backend.RoleSandbox, backend.LabelInstance: f.Instance, backend.LabelID: f.SessionID,
		backend.LabelKey: f.Key, backend.LabelRun: f.Run,
	}
	maps.DeleteFunc(l, func(_, want string) bool { return want == "" })
	return l
}
