//go:build linux

package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/session"
)

// Images that the engine of the tests has.
const (
	debianImage = "workcell/debian:12"
	pythonImage = "workcell/python:3.11"
)

// realEngine is the Docker Engine of the tests, and a client that goes behind the manager's back.
type realEngine struct {
	b        *docker.Backend
	api      *dockerclient.Client
	instance string
}

// newRealEngine connects to the engine; at its end nothing of its instance may be left.
func newRealEngine(t *testing.T) *realEngine {
	t.Helper()
	b, err := docker.New(t.Context(), nil)
	if err != nil {
		t.Fatalf("these tests need a Docker Engine (make engine): %v", err)
	}
	api, err := dockerclient.NewClientWithOpts(dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	r := &realEngine{b: b, api: api, instance: "session-test-" + session.NewID()}
	t.Cleanup(func() {
		must(t, b.Close()) // waits for what it does in the background
		if c, v := r.labelled(t); len(c)+len(v) != 0 {
			t.Errorf("left on the engine: containers %v, volumes %v", c, v)
		}
		must(t, api.Close())
	})
	return r
}

// manager makes a manager of the engine's instance.
func (r *realEngine) manager(t *testing.T, opts session.Options) *session.Manager {
	t.Helper()
	opts.Instance = r.instance
	return newManager(t, r.b, &opts)
}

// objects lists the sandboxes of the instance and their workspaces.
func (r *realEngine) objects(t *testing.T) (containers, volumes []string) {
	t.Helper()
	containers, _ = r.labelled(t, filters.Arg("label", backend.LabelRole+"="+backend.RoleSandbox))
	_, volumes = r.labelled(t, filters.Arg("label", backend.LabelRole+"="+backend.RoleWorkspace))
	return containers, volumes
}

// labelled lists the containers and volumes of the instance that have more labels.
func (r *realEngine) labelled(t *testing.T, more ...filters.KeyValuePair) (containers, volumes []string) {
	t.Helper()
	ours := append([]filters.KeyValuePair{filters.Arg("label", backend.LabelInstance+"="+r.instance)}, more...)
	list, err := r.api.ContainerList(context.Background(), container.ListOptions{All: true, Filters: filters.NewArgs(ours...)})
	must(t, err)
	for _, c := range list {
		containers = append(containers, c.ID)
	}
	vols, err := r.api.VolumeList(context.Background(), volume.ListOptions{Filters: filters.NewArgs(ours...)})
	must(t, err)
	for _, v := range vols.Volumes {
		volumes = append(volumes, v.Name)
	}
	return containers, volumes
}

func dockerRequest() session.Request { return session.Request{Image: debianImage} }

// openOn opens a key on the real engine.
func openOn(t *testing.T, m *session.Manager, key session.Key) *session.Session {
	t.Helper()
	s, _, err := m.Open(t.Context(), key, dockerRequest())
	must(t, err)
	return s
}

func TestDockerExec(t *testing.T) {
	t.Parallel()
	req := execRequest()
	req.Image = debianImage
	s, _, err := newRealEngine(t).manager(t, session.Options{}).Open(t.Context(), session.WorkflowKey("run_1", "default"), req)
	must(t, err)
	execCases(t, s)
}

func TestDockerFiles(t *testing.T) {
	t.Parallel()
	m := newRealEngine(t).manager(t, session.Options{MaxFileBytes: fileLimit})
	s := openOn(t, m, session.WorkflowKey("run_1", "default"))
	fileCases(t, s)
	t.Run("Owner", func(t *testing.T) {
		write(t, s, "owned/file", []byte("x"), session.WriteFileOptions{})
		if got := output(t, s, "stat -c '%u:%g %a' owned owned/file"); got != "1000:1000 755\n1000:1000 644\n" {
			t.Errorf("owner and mode: %q", got)
		}
	})
}

func TestDockerConcurrentOpens(t *testing.T) {
	t.Parallel()
	r := newRealEngine(t)
	m := r.manager(t, session.Options{})
	key := session.WorkflowKey("run_1", "default")
	ids := make([]string, 100)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			s, _, err := m.Open(t.Context(), key, dockerRequest())
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = s.ID()
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("%s and %s for one key", id, ids[0])
		}
	}
	if list := mustList(t, m); len(list) != 1 || list[0].ID != ids[0] {
		t.Errorf("the engine has %+v, want one sandbox", list)
	}
	if c, v := r.objects(t); len(c) != 1 || len(v) != 1 {
		t.Errorf("containers %v, volumes %v, want one each", c, v)
	}
	must(t, m.CloseScope(t.Context(), key.Scope()))
	if c, v := r.objects(t); len(c)+len(v) != 0 {
		t.Errorf("after the close: containers %v, volumes %v", c, v)
	}
}

// TestDockerRunEnds closes one run of two; also with a cancelled context, as after Ctrl-C.
func TestDockerRunEnds(t *testing.T) {
	t.Parallel()
	r := newRealEngine(t)
	m := r.manager(t, session.Options{})
	first, second := session.Run{Namespace: "workflow", ID: "run_1"}, session.Run{Namespace: "workflow", ID: "run_2"}
	var wg sync.WaitGroup
	for _, key := range []session.Key{first.Key("a"), first.Key("b"), second.Key("a")} {
		wg.Go(func() {
			if _, _, err := m.Open(t.Context(), key, dockerRequest()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	old := m.InScope(first.Scope())[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must(t, m.CloseScope(ctx, first.Scope()))
	if c, v := r.objects(t); len(c) != 1 || len(v) != 1 {
		t.Errorf("containers %v, volumes %v, want the other run's", c, v)
	}
	if got := output(t, m.InScope(second.Scope())[0], "echo alive"); got != "alive\n" {
		t.Errorf("output %q", got)
	}
	if _, err := m.Lookup(t.Context(), first.Scope(), old.ID()); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Lookup of a closed id = %v, want ErrClosed", err)
	}
	if _, _, err := m.Open(t.Context(), first.Key("a"), dockerRequest()); !errors.Is(err, backend.ErrClosed) {
		t.Errorf("Open in a run that has ended = %v", err)
	}
}

// TestDockerCloseUnderLoad closes a session with calls under way.
func TestDockerCloseUnderLoad(t *testing.T) {
	t.Parallel()
	r := newRealEngine(t)
	s := openOn(t, r.manager(t, session.Options{}), session.WorkflowKey("run_1", "default"))
	input, feed := io.Pipe()
	defer feed.Close()
	ended := make(chan error, 3)
	go func() {
		_, err := s.Exec(t.Context(), session.ExecRequest{Command: "sleep 100"})
		ended <- err
	}()
	go func() {
		_, err := s.Stream(t.Context(), session.ExecRequest{Command: "cat"}, session.Streams{Stdin: input})
		ended <- err
	}()
	go func() {
		_, err := s.WriteFile(t.Context(), "endless", input, session.WriteFileOptions{})
		ended <- err
	}()
	eventually(t, "three calls are under way", func() bool { return s.Active() == 3 })
	began := time.Now()
	must(t, s.Close(t.Context()))
	for range 3 {
		select {
		case err := <-ended:
			if !errors.Is(err, backend.ErrClosed) {
				t.Errorf("a call under way = %v, want ErrClosed", err)
			}
		case <-time.After(max(0, 5*time.Second-time.Since(began))):
			t.Fatal("a call is still under way after 5 s")
		}
	}
	if c, v := r.objects(t); len(c)+len(v) != 0 {
		t.Errorf("containers %v, volumes %v", c, v)
	}
}

// TestDockerCancelledOpen cancels opens after different times; nothing is left.
func TestDockerCancelledOpen(t *testing.T) {
	t.Parallel()
	r := newRealEngine(t)
	m := r.manager(t, session.Options{})
	for i := range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*3*time.Millisecond)
		s, _, err := m.Open(ctx, session.WorkflowKey(fmt.Sprintf("run_%d", i), "default"), dockerRequest())
		cancel()
		if err == nil {
			must(t, s.Close(t.Context()))
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Open = %v", err)
		}
	}
	eventually(t, "nothing is left", func() bool {
		c, v := r.objects(t)
		return len(c)+len(v) == 0 && m.Used() == 0
	})
}

// TestDockerLost removes, kills and stops containers behind the manager's back.
func TestDockerLost(t *testing.T) {
	t.Parallel()
	r := newRealEngine(t)
	m := r.manager(t, session.Options{})
	for name, ruin := range map[string]func(id string) error{
		"removed": func(id string) error {
			return r.api.ContainerRemove(context.Background(), id, container.RemoveOptions{Force: true})
		},
		"killed": func(id string) error { return r.api.ContainerKill(context.Background(), id, "KILL") },
		"restarted": func(id string) error {
			none := 0
			return r.api.ContainerRestart(context.Background(), id, container.StopOptions{Timeout: &none})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := session.WorkflowKey("run_1", name)
			s := openOn(t, m, key)
			running := make(chan error, 1)
			go func() {
				_, err := s.Exec(t.Context(), session.ExecRequest{Command: "touch began; sleep 100"})
				running <- err
			}()
			eventually(t, "a command runs", func() bool { _, err := s.StatFile(t.Context(), "began"); return err == nil })
			must(t, ruin(s.Info().EngineID))
			if err := <-running; !errors.Is(err, backend.ErrLost) {
				t.Errorf("the command under way = %v, want ErrLost", err)
			}
			if _, err := s.Exec(t.Context(), session.ExecRequest{Argv: []string{"true"}}); !errors.Is(err, backend.ErrLost) || s.Info().State != session.StateLost {
				t.Errorf("the next call = %v in state %s", err, s.Info().State)
			}
			fresh, created, err := m.Open(t.Context(), key, dockerRequest())
			if err != nil || !created || fresh.ID() == s.ID() {
				t.Fatalf("Open after the loss = %v, %v, %v", fresh, created, err)
			}
			if got := output(t, fresh, "ls -A"); got != "" {
				t.Errorf("the fresh sandbox holds %q", got)
			}
		})
	}
}

// TestDockerOutOfMemory: a command that takes too much memory is told apart from one that was killed.
func TestDockerOutOfMemory(t *testing.T) {
	t.Parallel()
	m := newRealEngine(t).manager(t, session.Options{})
	s, _, err := m.Open(t.Context(), session.WorkflowKey("run_1", "default"), session.Request{
		Image: pythonImage, Limits: backend.Limits{MemoryBytes: 64 << 20, TmpBytes: 16 << 20},
	})
	must(t, err)
	hog := "b = []\nwhile True: b.append(bytearray(1 << 20))"
	for _, test := range []struct {
		req  session.ExecRequest
		want session.ExecState
	}{
		{session.ExecRequest{Command: "kill -9 $$"}, session.ExecCompleted},
		{session.ExecRequest{Argv: []string{"python3", "-c", hog}}, session.ExecOOMKilled},
		{session.ExecRequest{Command: "python3 -c '" + hog + "'; exit $?"}, session.ExecOOMKilled},
		{session.ExecRequest{Command: "sleep 3; kill -9 $$"}, session.ExecCompleted},
		{session.ExecRequest{Command: "exit 137"}, session.ExecCompleted},
	} {
		if res := run(t, s, test.req); res.Status != test.want {
			t.Errorf("%q: %+v, want %s", test.req.Command, res.ExecStatus, test.want)
		}
	}
	if s.Info().State != session.StateReady {
		t.Errorf("state %s", s.Info().State)
	}
}

// TestDockerOtherProcess works in a sandbox beside its owner.
func TestDockerOtherProcess(t *testing.T) {
	t.Parallel()
	r := newRealEngine(t)
	owner, visitor := r.manager(t, session.Options{}), r.manager(t, session.Options{})
	s := openOn(t, owner, session.WorkflowKey("run_1", "default"))
	output(t, s, "echo owner > file")
	if list := mustList(t, visitor); len(list) != 1 || list[0].ID != s.ID() || list[0].Image != debianImage || list[0].Backend != "docker" {
		t.Fatalf("list %+v", list)
	}
	for _, id := range []string{s.Info().EngineID, s.Info().EngineID[:12], s.ID()[:12]} {
		if _, err := visitor.Connect(t.Context(), id); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Connect(%s) = %v, want ErrNotFound", id, err)
		}
	}
	v, err := visitor.Connect(t.Context(), s.ID())
	must(t, err)
	running := make(chan error, 1)
	go func() {
		_, err := s.Exec(t.Context(), session.ExecRequest{Command: "while [ ! -e stop ]; do sleep 0.05; done"})
		running <- err
	}()
	if got := output(t, v, "cat file; touch stop"); got != "owner\n" {
		t.Errorf("output %q", got)
	}
	must(t, <-running)
	must(t, v.Close(t.Context()))
	if got := output(t, s, "echo still"); got != "still\n" {
		t.Errorf("output %q", got)
	}
	must(t, visitor.Remove(t.Context(), s.ID(), true))
	eventually(t, "the owner learns of it", func() bool { return s.Info().State == session.StateLost })
}

// TestDockerSecretsStayInside looks for the canary also in what the engine tells of a container.
func TestDockerSecretsStayInside(t *testing.T) {
	t.Parallel()
	r := newRealEngine(t)
	spy := &inspecting{Backend: r.b, api: r.api}
	canary(t, spy, dockerRequest())
	if spy.seen == "" || strings.Contains(spy.seen, "c4n4ry") {
		t.Errorf("the engine's description of the container, %d bytes, holds the secret", len(spy.seen))
	}
}

// inspecting notes the engine's description of a container before it is removed.
type inspecting struct {
	*docker.Backend
	api  *dockerclient.Client
	seen string
}

func (i *inspecting) Remove(ctx context.Context, id string, opts backend.RemoveOptions) error {
	if c, err := i.api.ContainerInspect(ctx, id); err == nil {
		text, err := json.Marshal(c)
		if err != nil {
			return err
		}
		i.seen += string(text)
	}
	return i.Backend.Remove(ctx, id, opts)
}

// TestDockerSpans: the driver's spans are children of the session's.
func TestDockerSpans(t *testing.T) {
	t.Parallel()
	exporter, tp := spanRecorder(t)
	m := newRealEngine(t).manager(t, session.Options{TracerProvider: tp})
	s := openOn(t, m, session.WorkflowKey("run_1", "default"))
	must(t, s.Close(t.Context()))
	parents := map[string]string{}
	names := map[string]string{}
	for _, span := range exporter.GetSpans() {
		names[span.SpanContext.SpanID().String()] = span.Name
		parents[span.Name] = span.Parent.SpanID().String()
	}
	for child, parent := range map[string]string{
		telemetry.SpanDockerCreate: telemetry.SpanOpen, telemetry.SpanDockerDial: telemetry.SpanOpen, telemetry.SpanDockerRemove: telemetry.SpanClose,
	} {
		if names[parents[child]] != parent {
			t.Errorf("the parent of %s is %q, want %s", child, names[parents[child]], parent)
		}
	}
}
