package docker

import (
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// TestOverVolumes verifies that a mount replaces a volume of the image. The engine would refuse both.
func TestOverVolumes(t *testing.T) {
	t.Parallel()
	got := overVolumes(&image{volumes: []string{"/data", "/data/sub"}}, backend.Mount{Target: "/data"})
	if len(got) != 1 || got[0].Target != "/data/sub" {
		t.Errorf("got %+v", got)
	}
}

// TestRefusedCreation verifies that only a missing directory is reported as one.
func TestRefusedCreation(t *testing.T) {
	t.Parallel()
	p := &plan{Plan: &kit.Plan{Spec: backend.Spec{Mounts: []backend.Mount{{Source: "/srv"}}}}}
	for detail, want := range map[string]string{
		`invalid mount config for type "bind": bind source path does not exist: <path>`: "docker: a directory to mount does not exist on the engine's host: invalid argument",
		"Duplicate mount point: /data":        "docker: the engine refused a directory to mount: invalid argument",
		"Minimum memory limit allowed is 6MB": "docker: create container: invalid argument: Minimum memory limit allowed is 6MB",
	} {
		err := (&creation{p: p}).requestError(&kit.Error{Driver: "docker", What: "create container", Kind: backend.ErrInvalid, Detail: detail})
		if err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	}
}
