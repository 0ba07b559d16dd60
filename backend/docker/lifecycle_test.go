package docker_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func TestLifecycle(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	ctx := t.Context()
	info := create(t, b, newSpec())
	conn := dial(t, b, info.ID)
	boot := conn.Hello().BootID
	sh(t, conn, "echo kept > /workspace/f; echo lost > /tmp/f")
	state := func(want backend.State) {
		t.Helper()
		if got, err := b.Get(ctx, info.ID); err != nil || got.State != want {
			t.Errorf("state %s, %v, want %s", got.State, err, want)
		}
	}
	if err := b.Start(ctx, info.ID); err != nil {
		t.Errorf("Start of a running one: %v", err)
	}
	if got := sh(t, conn, "echo still here"); got != "still here\n" {
		t.Errorf("after that: %q", got)
	}
	for range 2 {
		if err := b.Stop(ctx, info.ID); err != nil {
			t.Errorf("Stop: %v", err)
		}
		state(backend.StateStopped)
	}
	for name, dial := range map[string]func() error{
		"Dial":    func() error { _, err := b.Dial(ctx, info.ID); return err },
		"Connect": func() error { _, err := b.Connect(ctx, info.ID); return err },
	} {
		if err := dial(); !errors.Is(err, backend.ErrLost) {
			t.Errorf("%s of a stopped one: %v, want ErrLost", name, err)
		}
	}
	for range 2 {
		if err := b.Start(ctx, info.ID); err != nil {
			t.Errorf("Start: %v", err)
		}
		state(backend.StateRunning)
	}
	conn = dial(t, b, info.ID)
	if conn.Hello().BootID == boot {
		t.Error("the guest is the same one after a restart")
	}
	if got := sh(t, conn, "cat /workspace/f; ls /tmp"); got != "kept\n" {
		t.Errorf("files after a restart: %q", got)
	}
	for range 2 {
		if err := b.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true}); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	for name, err := range map[string]error{
		"Get": second(b.Get(ctx, info.ID)), "Start": b.Start(ctx, info.ID), "Stop": b.Stop(ctx, info.ID),
		"Dial": second(b.Dial(ctx, info.ID)), "Connect": second(b.Connect(ctx, info.ID)), "OOM": second(b.OOMKills(ctx, info.ID)),
	} {
		if !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%s of a removed one: %v, want ErrNotFound", name, err)
		}
	}
	nothingLeft(t, info.SessionID)
}

// TestWorkspaceKept removes a sandbox without its workspace, and makes another of the same session.
func TestWorkspaceKept(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	info := create(t, b, spec)
	sh(t, dial(t, b, info.ID), "echo kept > /workspace/f")
	if err := b.Remove(t.Context(), info.ID, backend.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	again := create(t, b, spec)
	if got := sh(t, dial(t, b, again.ID), "cat /workspace/f; stat -c %u /workspace"); got != "kept\n1000\n" {
		t.Errorf("%q", got)
	}
	if err := b.Remove(t.Context(), again.ID, backend.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	sized := spec
	sized.Limits.WorkspaceBytes = 1 << 20
	if _, err := b.Create(t.Context(), sized); !errors.Is(err, backend.ErrExists) {
		t.Errorf("another size: %v, want ErrExists", err)
	}
	stranger := spec
	stranger.Instance = instance + "-x"
	if _, err := b.Create(t.Context(), stranger); !errors.Is(err, backend.ErrExists) {
		t.Errorf("another instance: %v, want ErrExists", err)
	}
	failing := spec
	failing.Image = "workcelltest/none:none"
	if _, err := b.Create(t.Context(), failing); !errors.Is(err, backend.ErrImage) {
		t.Errorf("a missing image: %v, want ErrImage", err)
	}
	last := create(t, b, spec)
	if got := sh(t, dial(t, b, last.ID), "cat /workspace/f"); got != "kept\n" {
		t.Errorf("after failures: %q", got)
	}
}

// TestRemovedBehindOurBack leaves the workspace to be removed alone.
func TestRemovedBehindOurBack(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	info := create(t, b, newSpec())
	conn := dial(t, b, info.ID)
	if err := engineAPI(t).ContainerRemove(t.Context(), info.ID, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-conn.Done():
	case <-time.After(30 * time.Second):
		t.Error("the stream does not end")
	}
	if _, err := b.Dial(t.Context(), info.ID); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("Dial: %v, want ErrNotFound", err)
	}
	remove(t, b, info.ID)
	nothingLeft(t, info.SessionID)
}

// TestForeignContainers are never touched, whatever they look like.
func TestForeignContainers(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	api := engineAPI(t)
	id := strings.ToLower(rand.Text())
	ours := map[string]string{backend.LabelRole: backend.RoleSandbox, backend.LabelID: "sbx_" + id, backend.LabelRun: "run_" + id}
	for what, labels := range map[string]map[string]string{"plain": nil, "look-alike": ours} {
		res, err := api.ContainerCreate(t.Context(), &container.Config{Image: debianImage, Cmd: []string{"sleep", "100"}, Labels: labels},
			&container.HostConfig{NetworkMode: "none"}, nil, nil, "workcelltest-"+what+"-"+id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := api.ContainerRemove(context.Background(), res.ID, container.RemoveOptions{Force: true}); err != nil {
				t.Error(err)
			}
		})
		for _, name := range []string{res.ID, res.ID[:12], "workcelltest-" + what + "-" + id, "/" + "workcelltest-" + what + "-" + id} {
			for method, err := range map[string]error{
				"Get": second(b.Get(t.Context(), name)), "Start": b.Start(t.Context(), name), "Stop": b.Stop(t.Context(), name),
				"Dial": second(b.Dial(t.Context(), name)), "Connect": second(b.Connect(t.Context(), name)), "OOM": second(b.OOMKills(t.Context(), name)),
			} {
				if !errors.Is(err, backend.ErrNotFound) {
					t.Errorf("%s of a %s container: %v, want ErrNotFound", method, what, err)
				}
			}
			if err := b.Remove(t.Context(), name, backend.RemoveOptions{Volumes: true}); err != nil {
				t.Errorf("Remove of a %s container: %v", what, err)
			}
		}
		if _, err := api.ContainerInspect(t.Context(), res.ID); err != nil {
			t.Errorf("the %s container: %v", what, err)
		}
	}
	if list, err := b.List(t.Context(), backend.Filter{Run: "run_" + id}); err != nil || len(list) != 0 {
		t.Errorf("List: %v, %v", list, err)
	}
	mine := create(t, b, newSpec())
	for _, name := range []string{mine.ID[:12], "workcell-" + mine.SessionID, mine.SessionID, strings.ToUpper(mine.ID), mine.ID + "\n"} {
		if _, err := b.Get(t.Context(), name); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("Get(%q): %v, want ErrNotFound", name, err)
		}
	}
}

// TestManyCreates runs creations and removals at the same time.
func TestManyCreates(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	const n = 20
	run := "run_" + rand.Text()
	infos := make([]backend.Info, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			spec := newSpec()
			spec.Run = run
			info, err := b.Create(t.Context(), spec)
			if err != nil {
				t.Errorf("Create: %v", err)
				return
			}
			infos[i] = info
		})
	}
	wg.Wait()
	list, err := b.List(t.Context(), backend.Filter{Run: run})
	if err != nil || len(list) != n {
		t.Errorf("List: %d, %v, want %d", len(list), err, n)
	}
	for i := 1; i < len(list); i++ {
		if list[i].Created.Before(list[i-1].Created) {
			t.Error("List is not sorted by creation")
		}
	}
	for _, info := range infos {
		for range 2 { // twice at a time
			wg.Go(func() {
				if info.ID != "" {
					remove(t, b, info.ID)
				}
			})
		}
	}
	wg.Wait()
	for _, info := range infos {
		nothingLeft(t, info.SessionID)
	}
}

// TestSameSession has several creations of one session at a time: one wins, and its workspace stays.
func TestSameSession(t *testing.T) {
	t.Parallel()
	spec := newSpec()
	var mu sync.Mutex
	var won []backend.Info
	var wg sync.WaitGroup
	b := newBackend(t, nil)
	others := []*docker.Backend{b, b, newBackend(t, nil), newBackend(t, nil)}
	for _, o := range others {
		wg.Go(func() {
			info, err := o.Create(t.Context(), spec)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, info)
			case !errors.Is(err, backend.ErrExists):
				t.Errorf("Create: %v, want ErrExists", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d won", len(won))
	}
	defer remove(t, b, won[0].ID)
	if got := sh(t, dial(t, b, won[0].ID), "touch /workspace/x && stat -c %u /workspace"); got != "1000\n" {
		t.Errorf("%q", got)
	}
}

// TestGuestVolume fills the volume of a new guest version from several processes at a time, empties it, and leaves a
// stale lock.
func TestGuestVolume(t *testing.T) {
	t.Parallel()
	api := engineAPI(t)
	guest := &docker.Guest{Version: strings.ToLower(rand.Text()), Binary: embed.Binary}
	name := "workcell-guest-" + guest.Version
	t.Cleanup(func() {
		if err := api.VolumeRemove(context.Background(), name, true); err != nil {
			t.Error(err)
		}
	})
	backends := make([]*docker.Backend, 4)
	for i := range backends {
		backends[i] = newBackend(t, func(o *docker.Options) { o.Guest = guest })
	}
	var wg sync.WaitGroup
	for _, b := range backends {
		for range 2 {
			wg.Go(func() {
				info, err := b.Create(t.Context(), newSpec())
				if err != nil {
					t.Errorf("Create: %v", err)
					return
				}
				remove(t, b, info.ID)
			})
		}
	}
	wg.Wait()
	if _, err := api.ContainerInspect(t.Context(), name); err == nil {
		t.Error("the lock is left")
	}
	v, err := api.VolumeInspect(t.Context(), name)
	if want := map[string]string{backend.LabelRole: backend.RoleGuest, backend.LabelGuest: guest.Version}; err != nil || !cmp.Equal(v.Labels, want) {
		t.Errorf("labels %v, %v", v.Labels, err)
	}

	b := backends[0]
	if err := api.VolumeRemove(t.Context(), name, false); err != nil { // as a prune does
		t.Fatal(err)
	}
	info := create(t, b, newSpec())
	if got := sh(t, dial(t, b, info.ID), "echo alive"); got != "alive\n" {
		t.Errorf("after a prune: %q", got)
	}
	remove(t, b, info.ID)

	if err := api.VolumeRemove(t.Context(), name, false); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ContainerCreate(t.Context(), &container.Config{
		Image: debianImage, Labels: map[string]string{backend.LabelRole: backend.RoleInit},
	}, &container.HostConfig{NetworkMode: "none"}, nil, nil, name); err != nil {
		t.Fatal(err)
	}
	fresh := newBackend(t, func(o *docker.Options) { o.Guest = guest })
	fresh.SetFillPatience(time.Second)
	info = create(t, fresh, newSpec())
	if got := sh(t, dial(t, fresh, info.ID), "echo alive"); got != "alive\n" {
		t.Errorf("after a dead process: %q", got)
	}
	remove(t, fresh, info.ID)
}

// TestConnect has the owner's stream and two others at a time, and the owner replaced.
func TestConnect(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	info := create(t, b, newSpec())
	owner := dial(t, b, info.ID)
	other := newBackend(t, nil) // as another process
	var conns []*client.Conn
	for range 2 {
		rw, err := other.Connect(t.Context(), info.ID)
		conns = append(conns, connect(t, rw, err))
	}
	for i, c := range append(conns, owner) {
		if got := sh(t, c, "echo $0"); got != "/bin/sh\n" {
			t.Errorf("stream %d: %q", i, got)
		}
	}
	if err := conns[0].Close(); err != nil {
		t.Error(err)
	}
	for _, c := range []*client.Conn{conns[1], owner} {
		if got := sh(t, c, "echo on"); got != "on\n" {
			t.Errorf("after another one closed: %q", got)
		}
	}
	next := dial(t, other, info.ID)
	if got := sh(t, next, "echo taken"); got != "taken\n" {
		t.Errorf("after the takeover: %q", got)
	}
	select {
	case <-owner.Done():
		if err := owner.Err(); !errors.Is(err, client.ErrSuperseded) {
			t.Errorf("the former owner: %v, want ErrSuperseded", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the former owner was not told")
	}
	if got := sh(t, conns[1], "echo on"); got != "on\n" {
		t.Errorf("the other stream after the takeover: %q", got)
	}
}

// TestBulk moves megabytes both ways through the stream.
func TestBulk(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	info := create(t, b, newSpec())
	rw, err := b.Connect(t.Context(), info.ID)
	for _, conn := range []*client.Conn{dial(t, b, info.ID), connect(t, rw, err)} {
		data := make([]byte, 16<<20)
		if _, err := rand.Read(data); err != nil {
			t.Fatal(err)
		}
		put := wire.FilePutRequest{Path: "big", Size: int64(len(data)), Overwrite: true}
		if _, err := conn.PutFile(t.Context(), put, bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		var back bytes.Buffer
		if _, err := conn.GetFile(t.Context(), wire.FileGetRequest{Path: "big", Length: -1}, &back); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(back.Bytes(), data) {
			t.Error("the bytes differ")
		}
	}
}

// TestConnectEnds looks for what a closed stream leaves in the sandbox.
func TestConnectEnds(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	info := create(t, b, newSpec())
	conn := dial(t, b, info.ID)
	for range 3 {
		rw, err := b.Connect(t.Context(), info.ID)
		if err := connect(t, rw, err).Close(); err != nil {
			t.Error(err)
		}
	}
	var got string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		got = sh(t, conn, "cat /proc/[0-9]*/comm | sort | uniq -c | tr -s ' '")
		if !strings.Contains(got, " 2 workcell-guest") && !strings.Contains(got, " 3 workcell-guest") && !strings.Contains(got, " 4 workcell-guest") {
			return
		}
	}
	t.Errorf("bridges are left: %s", got)
}

func TestHasImage(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	for ref, want := range map[string]bool{debianImage: true, "docker.io/" + debianImage: true, "workcelltest/none": false} {
		if got, err := b.HasImage(t.Context(), ref); err != nil || got != want {
			t.Errorf("HasImage(%q) = %v, %v, want %v", ref, got, err, want)
		}
	}
	if _, err := b.HasImage(t.Context(), "UPPER"); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("malformed: %v, want ErrInvalid", err)
	}
}

func TestPing(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	e, err := b.Ping(t.Context())
	if err != nil || e.Name != "docker" || e.Version == "" || e.API == "" || e.Arch == "" || len(e.Runtimes) == 0 {
		t.Errorf("Ping: %+v, %v", e, err)
	}
	c := b.Capabilities()
	want := backend.Capabilities{
		Memory: true, CPU: true, PIDs: true, Workspace: true, WritableRoot: true, Persistent: true, Runtimes: c.Runtimes,
		Networks: []backend.NetworkMode{backend.NetworkNone, backend.NetworkBridge},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("capabilities (-want +got)\n%s", diff)
	}
}
