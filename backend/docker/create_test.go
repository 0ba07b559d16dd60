package docker

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/checktest"
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

// fakeEngine returns a driver of an engine with these answers by the last part of the request's path. To every other
// request, the engine answers with a conflict.
func fakeEngine(t *testing.T, answers map[string]string) *Backend {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Ostype", "linux")
		w.Header().Set("Api-Version", minAPI)
		if answer, ok := answers[path.Base(r.URL.Path)]; ok {
			_, _ = w.Write([]byte(answer)) // fails if the caller has left
		} else if r.URL.Path != "/_ping" {
			w.WriteHeader(http.StatusConflict)
		}
	}))
	b, err := New(t.Context(), &Options{Host: strings.Replace(srv.URL, "http:", "tcp:", 1)})
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, b.Close()); srv.Close() })
	return b
}

// TestImageOfEnvironment verifies that a sandbox reports the image of its request. The container of an environment has
// another image. Otherwise, the pool would take the sandbox for outdated.
func TestImageOfEnvironment(t *testing.T) {
	t.Parallel()
	b := fakeEngine(t, map[string]string{"json": `[{"Id": "c", "ImageID": "x", "State": "running",
		"Names": ["/workcell-a"],
		"Labels": {"dev.workcell.role": "sandbox", "dev.workcell.id": "a", "dev.workcell.image-id": "image"}}]`})
	list, err := b.List(t.Context(), backend.Filter{})
	if err != nil || len(list) != 1 || list[0].ImageID != "image" {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestVolumeInUse verifies that the removal of a workspace fails while a container of another program uses it, so that
// a sweep tries again. Remove ignores only another sandbox of the session.
func TestVolumeInUse(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]error{"other": errInUse, backend.RoleSandbox: errReplaced} {
		list := `[{"State": "exited", "Labels": {"dev.workcell.role": "` + role + `"}}]`
		err := fakeEngine(t, map[string]string{"json": list}).d.removeWorkspace(t.Context(), "v")
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", role, err, want)
		}
	}
}
