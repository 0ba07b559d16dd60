package containerd

import (
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	apitask "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

const (
	// configKey is the key of the container record's extension with config.
	configKey = backend.LabelPrefix + "config"
	// configType is the type of the extension. containerd stores unknown types without changes.
	configType = "dev.workcell/config.v1+json"
	// labelNonce contains the part of a sandbox's ID unique among the session's sandboxes.
	labelNonce = backend.LabelPrefix + "nonce"
)

// config is Workcell's data in a container's record, in addition to the labels.
type config struct {
	kit.Record
	ImageID  string   `json:"image_id"`
	ImageEnv []string `json:"image_env,omitempty"`
	Parent   string   `json:"parent"`  // chain ID of the image's layers; empty if the image has no layers
	Runtime  string   `json:"runtime"` // name of the OCI runtime

	Labels   map[string]string `json:"labels,omitempty"`   // labels of the user
	State    string            `json:"state"`              // state directory with the sandbox's files
	Cgroup   string            `json:"cgroup"`             // control group of the sandbox
	Building string            `json:"building,omitempty"` // name of the environment to install
	// Fork is the origin of the workspace's files. It is part of the record because the record's creator may die before it
	// creates the workspace.
	Fork *backend.ForkOf `json:"fork,omitempty"`
}

// record contains the used parts of a sandbox's container record. It is immutable.
type record struct {
	id          string // ID of the container, see containerID
	session     sessionName
	labels      map[string]string
	config      config
	snapshotter string
	image       string // full reference

	held io.Closer // keeps a fork's workspace mounted until the sandbox mounts it; may be nil
}

// letGo releases the workspace of a new fork.
func (r *record) letGo() {
	if r.held != nil {
		_ = r.held.Close() // only a descriptor
	}
}

// newRecord returns the record for the container of a plan.
func (b *driver) newRecord(p *plan, img *image, nonce string) *record {
	session := nameOf(p.Spec.ID)
	id := containerID(session, nonce)
	// The user's labels are only in config, because containerd and its plugins interpret some labels and reject labels of
	// more than 4 KiB.
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

func (r *record) extension() typeurl.Any {
	js, _ := json.Marshal(r.config) // cannot fail: texts and numbers
	return &anypb.Any{TypeUrl: configType, Value: js}
}

// readRecord parses a record written by Create. It returns false if the container is not a sandbox of this driver.
func readRecord(c containers.Container) (*record, bool) {
	session := nameOf(c.Labels[backend.LabelID])
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

// name returns the sandbox ID for callers.
func (r *record) name() string { return string(r.session) + "." + r.labels[labelNonce] }

// state returns the state directory of the sandbox's installation.
func (r *record) state() stateDir { return stateDir{root: r.config.State} }

// owner returns the owner of the workspace.
func (r *record) owner() (kit.User, error) { return kit.ParseUser(r.config.User) }

// bridged reports whether the sandbox has a network.
func (r *record) bridged() bool { return r.config.Network == backend.NetworkBridge }

// netns returns the path of a sandbox's network namespace. If the runtime creates the namespace, netns returns an empty
// string. A runtime with a separate network stack (runsc) uses the existing interfaces and starts none.
func (r *record) netns() string {
	switch {
	case r.bridged():
		return r.state().netns(r.id)
	case ownKernel(r.config.Runtime):
		return r.state().loopback(r.id)
	}
	return ""
}

// info returns the info of the sandbox.
func (r *record) info(s backend.State) backend.Info {
	info := r.config.Info(r.labels, r.config.Labels)
	info.ID, info.ImageID, info.ImageEnv, info.State = r.name(), r.config.ImageID, slices.Clone(r.config.ImageEnv), s
	return info
}

// stateOf returns the state of a sandbox. p is the main process, or nil.
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

// startedFile contains the ID of a started sandbox. Before that, another process may still be creating the sandbox.
const startedFile = "started"

func (r *record) markStarted() error {
	return stateError("record the start", os.WriteFile(r.state().file(r.id, startedFile), []byte(r.name()), 0o600))
}

func (r *record) started() bool {
	name, err := os.ReadFile(r.state().file(r.id, startedFile))
	return err == nil && string(name) == r.name()
}
