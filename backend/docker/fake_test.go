package docker_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
)

// fakeID is the ID of the fake engine's container.
var fakeID = strings.Repeat("a", 64)

// newFake returns a backend of a fake engine. The keys of answers are a method and a path, without the API version.
// Other requests are not found.
func newFake(t *testing.T, answers map[string]http.HandlerFunc, adjust func(*docker.Options)) *docker.Backend {
	t.Helper()
	dir, err := os.MkdirTemp("", "dock") // t.TempDir may be too long for a socket
	must(t, err)
	l, err := net.Listen("unix", filepath.Join(dir, "e.sock"))
	must(t, err)
	version := regexp.MustCompile(`^/v1\.[0-9]+`)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Ostype", "linux")
		path := version.ReplaceAllString(r.URL.Path, "")
		if f := answers[r.Method+" "+path]; f != nil {
			f(w, r)
		} else if path != "/_ping" {
			http.Error(w, `{"message":"not found"}`, http.StatusNotFound)
		}
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l) // ends with Close
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
		_ = os.RemoveAll(dir)
	})
	return newBackend(t, func(o *docker.Options) {
		o.Host = "unix://" + filepath.Join(dir, "e.sock")
		if adjust != nil {
			adjust(o)
		}
	})
}

// answer returns a handler with a fixed response.
func answer(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body)) // fails if the caller is gone
	}
}

// sandbox returns the response to the inspection of the fake container.
func sandbox(status, labels string) string {
	return `{"Id":"` + fakeID + `","Name":"/workcell-s","State":{"Status":"` + status +
		`","Running":` + strconv.FormatBool(status == "running") + `},"HostConfig":{},"Config":{"Labels":{"` +
		backend.LabelRole + `":"` + backend.RoleSandbox + `","` + backend.LabelID + `":"s"` + labels + `}}}`
}

// TestSlowCommit verifies that saving a large environment may take longer than other calls.
func TestSlowCommit(t *testing.T) {
	t.Parallel()
	labels := `,"` + backend.LabelPrefix + `building":"e","` + backend.LabelPrefix + `config":"{}"`
	b := newFake(t, map[string]http.HandlerFunc{
		"GET /containers/" + fakeID + "/json":  answer(http.StatusOK, sandbox("running", labels)),
		"POST /containers/" + fakeID + "/stop": answer(http.StatusNoContent, ""),
		"POST /commit": func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(4 * time.Second)
			answer(http.StatusCreated, `{"Id":"i"}`)(w, r)
		},
	}, func(o *docker.Options) { o.CallTimeout = 3 * time.Second })
	must(t, b.CommitEnvironment(t.Context(), fakeID))
}

// TestDead verifies that a container whose removal failed counts as stopped, so that other processes remove it.
func TestDead(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]backend.State{
		"dead": backend.StateStopped, "removing": backend.StateGone, "exited": backend.StateStopped,
	} {
		b := newFake(t, map[string]http.HandlerFunc{
			"GET /containers/" + fakeID + "/json": answer(http.StatusOK, sandbox(status, "")),
		}, nil)
		if info, err := b.Get(t.Context(), fakeID); err != nil || info.State != want {
			t.Errorf("%s: %s, %v, want %s", status, info.State, err, want)
		}
	}
}

// TestImageOfEnvironment verifies that a sandbox reports the image of its request. The container of an environment has
// another image. Otherwise, the pool would take the sandbox for outdated.
func TestImageOfEnvironment(t *testing.T) {
	t.Parallel()
	b := newFake(t, map[string]http.HandlerFunc{"GET /containers/json": answer(http.StatusOK, `[{
		"Id": "c", "ImageID": "x", "State": "running", "Names": ["/workcell-a"],
		"Labels": {"dev.workcell.role": "sandbox", "dev.workcell.id": "a", "dev.workcell.image-id": "image"}}]`),
	}, nil)
	list, err := b.List(t.Context(), backend.Filter{})
	if err != nil || len(list) != 1 || list[0].ImageID != "image" {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestVolumeInUse verifies that the removal of a workspace fails while a container of another program uses it, so that
// a sweep tries again. Remove ignores only another sandbox of the session.
func TestVolumeInUse(t *testing.T) {
	t.Parallel()
	for role, want := range map[string]error{"other": backend.ErrExists, backend.RoleSandbox: nil} {
		list := `[{"State": "exited", "Labels": {"dev.workcell.role": "` + role + `"}}]`
		b := newFake(t, map[string]http.HandlerFunc{
			"GET /info":                            answer(http.StatusOK, "{}"),
			"GET /containers/" + fakeID + "/json":  answer(http.StatusOK, sandbox("exited", "")),
			"DELETE /containers/" + fakeID:         answer(http.StatusNoContent, ""),
			"DELETE /volumes/workcell-s-workspace": answer(http.StatusConflict, ""),
			"GET /containers/json":                 answer(http.StatusOK, list),
		}, nil)
		err := b.Remove(t.Context(), fakeID, backend.RemoveOptions{Volumes: true})
		backendtest.Fails(t, "Remove with a container of role "+role, err, want)
	}
}

// bridgedLabels are the labels of a sandbox with a network.
const bridgedLabels = `,"` + backend.LabelPrefix + `config":"{\"network\":\"bridge\"}"`

// TestGuardFails verifies the error if the network of a sandbox cannot be filtered.
func TestGuardFails(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		code  int // response to the creation of the helper
		later string
		want  error
	}{
		{http.StatusConflict, "exited", backend.ErrLost},
		{http.StatusInternalServerError, "running", backend.ErrUnavailable},
		{http.StatusBadRequest, "running", backend.ErrUnsupported},
	} {
		var status atomic.Value
		status.Store("running")
		b := newFake(t, map[string]http.HandlerFunc{
			"GET /containers/" + fakeID + "/json": func(w http.ResponseWriter, r *http.Request) {
				answer(http.StatusOK, sandbox(status.Load().(string), bridgedLabels))(w, r)
			},
			"POST /containers/create": func(w http.ResponseWriter, r *http.Request) {
				status.Store(tc.later)
				answer(tc.code, `{"message":"failed"}`)(w, r)
			},
		}, nil)
		backendtest.Fails(t, "Start", b.Start(t.Context(), fakeID), tc.want)
	}
}

// TestNetworkPruned verifies that a sandbox whose network was removed joins a new network, and that a missing network
// never looks like a missing sandbox.
func TestNetworkPruned(t *testing.T) {
	t.Parallel()
	for _, connects := range []bool{true, false} {
		var made, connected, started atomic.Bool
		b := newFake(t, map[string]http.HandlerFunc{
			"GET /containers/" + fakeID + "/json": func(w http.ResponseWriter, r *http.Request) {
				status := "exited"
				if started.Load() {
					status = "running"
				}
				answer(http.StatusOK, sandbox(status, bridgedLabels))(w, r)
			},
			"HEAD /containers/" + fakeID + "/archive": answer(http.StatusInternalServerError, ""),
			"GET /info":     answer(http.StatusOK, "{}"),
			"GET /networks": answer(http.StatusOK, "[]"),
			"POST /networks/create": func(w http.ResponseWriter, r *http.Request) {
				made.Store(true)
				answer(http.StatusCreated, `{"Id":"n"}`)(w, r)
			},
			"POST /networks/workcell/disconnect": answer(http.StatusInternalServerError, `{"message":"not connected"}`),
			"POST /networks/workcell/connect": func(http.ResponseWriter, *http.Request) {
				connected.Store(made.Load() && connects)
			},
			"POST /containers/" + fakeID + "/start": func(w http.ResponseWriter, r *http.Request) {
				if !connected.Load() {
					answer(http.StatusNotFound, `{"message":"network n not found"}`)(w, r)
					return
				}
				started.Store(true)
				w.WriteHeader(http.StatusNoContent)
			},
			"POST /containers/create": answer(http.StatusInternalServerError, `{"message":"no helper"}`),
		}, nil)
		// The fake engine has no helper containers, so the network is never filtered.
		backendtest.Fails(t, "Start", b.Start(t.Context(), fakeID), backend.ErrUnavailable)
		if started.Load() != connects {
			t.Errorf("connected %t: started %t", connects, started.Load())
		}
	}
}

// TestEngineUpgraded verifies that an engine without support for the negotiated API version counts as unavailable.
func TestEngineUpgraded(t *testing.T) {
	t.Parallel()
	b := newFake(t, map[string]http.HandlerFunc{"GET /containers/json": answer(http.StatusBadRequest,
		`{"message":"client version 1.43 is too old. Minimum supported API version is 1.44, please upgrade your client"}`),
	}, nil)
	_, err := b.List(t.Context(), backend.Filter{})
	backendtest.Fails(t, "List", err, backend.ErrUnavailable)
}

// TestForeignNetworks verifies which default runtimes use the kernel's network stack.
func TestForeignNetworks(t *testing.T) {
	t.Parallel()
	for runtime, bridged := range map[string]bool{"runc": true, "nvidia": true, "runsc": false, "kata": false} {
		b := newFake(t, map[string]http.HandlerFunc{
			"GET /info": answer(http.StatusOK, `{"DefaultRuntime":"`+runtime+`","Runtimes":{"`+runtime+`":{}}}`),
		}, nil)
		if got := slices.Contains(b.Capabilities().Networks, backend.NetworkBridge); got != bridged {
			t.Errorf("%s: bridged %t, want %t", runtime, got, bridged)
		}
	}
}
