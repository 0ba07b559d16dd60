//go:build linux

package containerd_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
)

// TestSpecFollowsRequest changes everything that can be asked for.
func TestSpecFollowsRequest(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.User, spec.Root, spec.Network = "4242:100", backend.RootWritable, backend.NetworkBridge
	spec.Limits = backend.Limits{
		CPUMillis: 250, MemoryBytes: 64 << 20, PIDs: 30, TmpBytes: 1 << 20, WorkspaceBytes: 2 << 20, OpenFiles: 2000, FileBytes: 32 << 30,
	}
	info := backendtest.Create(t, b, spec)
	got := runtimeSpec(t, containerd.ContainerOf(info.ID))
	r := got.Linux.Resources
	if *r.CPU.Quota != 25_000 || *r.CPU.Period != 100_000 || *r.Memory.Limit != 74<<20 || *r.Memory.Swap != 74<<20 || *r.Pids.Limit != 50 {
		t.Errorf("resources: %+v", r)
	}
	if got.Root.Readonly || got.Process.User.UID != 4242 || got.Process.User.GID != 100 || len(got.Process.User.AdditionalGids) != 0 {
		t.Errorf("root %+v, user %+v", got.Root, got.Process.User)
	}
	options := map[string]string{}
	for _, m := range got.Mounts {
		options[m.Destination] = strings.Join(m.Options, ",")
	}
	for at, want := range map[string]string{
		"/tmp":       "rw,nosuid,nodev,exec,size=1048576,nr_inodes=256,mode=1777,uid=4242,gid=100",
		"/workspace": "rw,nosuid,nodev,nodiscard,noinit_itable,dioread_nolock",
		"/dev/shm":   "nosuid,noexec,nodev,mode=1777,size=16777216",
	} {
		if options[at] != want {
			t.Errorf("%s: %s, want %s", at, options[at], want)
		}
	}
	for _, n := range got.Linux.Namespaces {
		if own := strings.HasSuffix(n.Path, containerd.ContainerOf(info.ID)+"/netns"); own != (n.Type == specs.NetworkNamespace) || !own && n.Path != "" {
			t.Errorf("namespace %+v", n)
		}
	}
	want := []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_NOFILE", Hard: 2000, Soft: 2000}, {Type: "RLIMIT_FSIZE", Hard: 4 << 20, Soft: 4 << 20}} // of a writable root that is watched
	if diff := cmp.Diff(want, got.Process.Rlimits); diff != "" {
		t.Errorf("rlimits (-want +got)\n%s", diff)
	}
}

// runtimeSpec is the description that containerd keeps for the OCI runtime.
func runtimeSpec(t *testing.T, id string) specs.Spec {
	t.Helper()
	c, err := engineAPI(t).ContainerService().Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var s specs.Spec
	if err := json.Unmarshal(c.Spec.GetValue(), &s); err != nil {
		t.Fatal(err)
	}
	return s
}
