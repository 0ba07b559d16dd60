package containerd

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	apitask "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const (
	// configKey names the extension of a container record that holds config.
	configKey = backend.LabelPrefix + "config"
	// configType marks it, so that containerd keeps it as it is.
	configType = "dev.workcell/config.v1+json"
	// labelNonce is the part of a sandbox's name that no other sandbox of its session has.
	labelNonce = backend.LabelPrefix + "nonce"
)

// config is what Workcell keeps in a container's record beside its labels.
type config struct {
	kit.Record
	ImageID  string   `json:"image_id"`
	ImageEnv []string `json:"image_env,omitempty"`
	Parent   string   `json:"parent"`  // chain id of the image's layers; empty for an image without any
	Runtime  string   `json:"runtime"` // name of the OCI runtime

	Labels   map[string]string `json:"labels,omitempty"`   // the user's own
	State    string            `json:"state"`              // the state directory that holds the sandbox's files
	Cgroup   string            `json:"cgroup"`             // its control group
	Building string            `json:"building,omitempty"` // name of the environment to install
	// Fork is what the workspace begins as, whoever makes it: the process that made the record may have died before it
	// did.
	Fork *backend.ForkOf `json:"fork,omitempty"`
}

// record is a sandbox's container record, as far as the driver uses it. It never changes.
type record struct {
	id          string // of the container, see containerID
	session     string // see sessionName
	labels      map[string]string
	config      config
	snapshotter string
	image       string // full reference

	held io.Closer // keeps the workspace of a fork mounted until the sandbox has it; nil for none
}

// letGo lets go of the workspace of a fork that was just made.
func (r *record) letGo() {
	if r.held != nil {
		_ = r.held.Close() // a descriptor
	}
}

// jsonAny carries JSON through containerd.
type jsonAny struct{ value []byte }

func (jsonAny) GetTypeUrl() string { return configType }
func (a jsonAny) GetValue() []byte { return a.value }

// newRecord describes the container of a plan.
func (b *driver) newRecord(p *plan, img *image, nonce string) *record {
	session := sessionName(p.Spec.ID)
	id := containerID(session, nonce)
	// The user's own are in config alone: containerd and its plugins act on some, and take none of more than 4 KiB.
	labels := p.SandboxLabels(b.opts.Guest.Version)
	labels[labelNonce] = nonce
	var fork *backend.ForkOf
	if f := p.Spec.Fork; f != nil {
		fork = new(*f)
	}
	return &record{
		id: id, session: session, labels: labels, snapshotter: b.engine.snapshotter, image: p.Ref,
		config: config{
			Record: p.Record(p.enforcement), ImageID: img.id, ImageEnv: img.env, Parent: img.chain,
			Runtime: p.Spec.OCIRuntime, Labels: maps.Clone(p.Spec.Labels), State: b.state.root,
			Cgroup: b.cgroupPath(id), Fork: fork,
		},
	}
}

func (r *record) extension() (typeurl.Any, error) {
	js, err := json.Marshal(r.config)
	if err != nil {
		return nil, fmt.Errorf("containerd: record: %w", err)
	}
	return jsonAny{js}, nil
}

// readRecord reads back what Create wrote; false for a container that is not a sandbox of ours.
func readRecord(c containers.Container) (*record, bool) {
	session := sessionName(c.Labels[backend.LabelID])
	if c.Labels[backend.LabelRole] != backend.RoleSandbox || c.ID != containerID(session, c.Labels[labelNonce]) {
		return nil, false
	}
	r := &record{id: c.ID, session: session, labels: c.Labels, snapshotter: c.Snapshotter, image: c.Image}
	ext, ok := c.Extensions[configKey]
	if !ok || ext.GetTypeUrl() != configType || json.Unmarshal(ext.GetValue(), &r.config) != nil {
		return nil, false
	}
	return r, filepath.IsAbs(r.config.State) && filepath.Base(r.config.Cgroup) == r.id
}

// name is the sandbox's id for callers.
func (r *record) name() string { return r.session + "." + r.labels[labelNonce] }

// is reports whether this is the record of the sandbox of that id.
func (r *record) is(id string) bool { return r != nil && r.name() == id }

// state returns the directory that holds the sandbox's files: that of the installation that made it.
func (r *record) state() stateDir { return stateDir{root: r.config.State} }

// owner is the user whom the workspace belongs to.
func (r *record) owner() (kit.User, error) { return kit.ParseUser(r.config.User) }

// bridged reports whether the sandbox has a network.
func (r *record) bridged() bool { return r.config.Network == backend.NetworkBridge }

// netns returns the network namespace that is made for a sandbox; empty when its runtime makes it. A runtime with a
// network stack of its own (runsc) has the interfaces that it finds, and starts none.
func (r *record) netns() string {
	switch {
	case r.bridged():
		return r.state().netns(r.id)
	case ownKernel(r.config.Runtime):
		return r.state().loopback(r.id)
	}
	return ""
}

// info describes the sandbox.
func (r *record) info(s backend.State) backend.Info {
	info := r.config.Info(r.labels, r.config.Labels)
	info.ID, info.ImageID, info.ImageEnv, info.State = r.name(), r.config.ImageID, slices.Clone(r.config.ImageEnv), s
	return info
}

// stateOf returns the state of a sandbox from its main process, nil for none.
func (r *record) stateOf(p *apitask.Process) backend.State {
	switch p.GetStatus() {
	case apitask.Status_CREATED:
		return backend.StateCreated
	case apitask.Status_RUNNING:
		return backend.StateRunning
	case apitask.Status_PAUSED, apitask.Status_PAUSING:
		return backend.StatePaused
	}
	if !r.started() {
		return backend.StateCreated
	}
	return backend.StateStopped
}

// startedFile names the sandbox that was started: before that, its creation may be under way in another process.
const startedFile = "started"

func (r *record) markStarted() error {
	return stateError("record the start", os.WriteFile(r.state().file(r.id, startedFile), []byte(r.name()), 0o600))
}

func (r *record) started() bool {
	name, err := os.ReadFile(r.state().file(r.id, startedFile))
	return err == nil && string(name) == r.name()
}
