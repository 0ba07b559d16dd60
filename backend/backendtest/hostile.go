package backendtest

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func hostileChecks() []check {
	return []check{
		{"configuration", (*suite).hostileConfig},
		{"nothing inside", (*suite).scratchImages},
		{"linked", (*suite).linkedImages},
		{"unsafe", (*suite).unsafeImages},
	}
}

// hostileConfig verifies that an image with a hostile configuration results in an ordinary sandbox.
func (s *suite) hostileConfig(t *testing.T) {
	base := s.h.Images.exported(t, s.h.Debian)
	file, err := base.ConfigFile()
	must(t, err)
	file = file.DeepCopy()
	file.Config = v1.Config{
		User:       "root",
		Entrypoint: []string{"/bin/sh", "-c", "echo owned > /workspace/owned"},
		Cmd:        []string{"sleep", "1"},
		WorkingDir: "/proc/self/fd/8",
		Env: []string{
			"PATH=/evil", "GODEBUG=inittrace=1", "GOGC=off", "GOMAXPROCS=1", "GOTRACEBACK=crash", "LD_PRELOAD=/evil.so",
			"HUGE=" + strings.Repeat("x", 60_000),
		},
		Volumes: map[string]struct{}{
			"/data": {}, "/var/lib/x/y": {}, "/v": {}, "/workspace": {}, "/tmp": {}, "/.workcell": {},
		},
		ExposedPorts: map[string]struct{}{"22/tcp": {}},
		Healthcheck:  &v1.HealthConfig{Test: []string{"CMD-SHELL", "echo owned > /workspace/health"}, Interval: 1, Timeout: 1e9},
		StopSignal:   "SIGCONT",
		OnBuild:      []string{"RUN false"},
		Shell:        []string{"/evil"},
		Labels: map[string]string{
			backend.LabelInstance: "another", backend.LabelID: "sbx_another", backend.LabelRun: "run_another", "dev.workcell.config": "{}",
			"dev.workcell.unknown": "x", "vendor": "acme",
		},
	}
	img, err := mutate.ConfigFile(base, file)
	must(t, err)
	spec := s.lone(t)
	spec.Image = s.h.Images.Put(t, img)
	mounted := ""
	if !s.h.Cluster { // a mount replaces a volume
		mounted = "mounted\n"
		spec.Mounts = []backend.Mount{{Source: shared(t, mounted), Target: "/v"}}
	}
	info := s.create(t, spec)
	if len(info.ImageEnv) != 7 && !s.h.Cluster || len(info.Labels) != 0 || info.SessionID != spec.ID || info.Instance != spec.Instance || info.Run != spec.Run {
		t.Errorf("info: %d variables, labels %v, session %s of %s, run %s", len(info.ImageEnv), info.Labels, info.SessionID, info.Instance, info.Run)
	}
	conn := s.dial(t, info.ID)
	got := Sh(t, conn, `id -u; pwd; ls /workspace; env | grep -c -e ^HUGE -e ^LD_PRELOAD -e ^GO; cat /v/file 2>&-; true`)
	if want := "1000\n/workspace\n0\n" + mounted; got != want {
		t.Errorf("inside: %q, want %q", got, want)
	}
	for _, dir := range []string{"/data", "/var/lib/x/y"} {
		if s.h.Cluster { // volumes of images belong to the node
			break
		}
		Sh(t, conn, "echo x > "+dir+"/f")
		if res := Exec(t, conn, "sh", "-c", "dd if=/dev/zero of="+dir+"/big bs=1M count=70"); !strings.Contains(string(res.Stderr.Head), "No space left") {
			t.Errorf("%s: exit %d, %s", dir, res.ExitCode, res.Stderr.Head)
		}
		Sh(t, conn, "rm "+dir+"/big")
	}
	must(t, s.b.Stop(t.Context(), info.ID)) // regardless of the image's stop signal
	s.inState(t, info.ID, backend.StateStopped)
}

// scratchImages verifies that empty images work, because the guest agent has no dependencies.
func (s *suite) scratchImages(t *testing.T) {
	for i, img := range []v1.Image{
		BuildImage(t, v1.Config{}, Unique()),
		BuildImage(t, v1.Config{}, Unique(), Entry{Name: "tmp/", Mode: 0o555}, Entry{Name: "workspace/", Mode: 0o700}, Entry{Name: "workspace/from-image", Data: "x"}),
		BuildImage(t, v1.Config{}, Unique(), Entry{Name: "bin/"}, Entry{Name: "bin/sh", Data: "not a program"}, Entry{Name: ".workcell/"},
			Entry{Name: ".workcell/workcell-guest", Data: "evil"}),
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			spec := s.spec()
			spec.Image = s.h.Images.Put(t, img)
			conn := s.dial(t, s.create(t, spec).ID)
			if h := conn.Hello(); h.UID != 1000 || h.PID != 1 || h.Workdir != backend.Workdir {
				t.Errorf("hello %+v", h)
			}
			put := wire.FilePutRequest{Path: "dir/file", Size: 5}
			must(t, second(conn.PutFile(t.Context(), put, strings.NewReader("hello"))))
			list, err := conn.List(t.Context(), wire.ListRequest{Path: "."})
			if err != nil || len(list.Entries) != 1 {
				t.Errorf("the workspace: %+v, %v", list, err)
			}
			var we *wire.Error
			_, err = conn.Run(t.Context(), command("/bin/sh", "-c", "true"))
			if !errors.As(err, &we) || we.Code != wire.CodeLaunch {
				t.Errorf("running a missing program: %v", err)
			}
		})
	}
}

// linkedImages verifies images with a link or a file at a mount point. The runtime resolves the link inside the image.
// The sandbox may run, be rejected, or exit.
func (s *suite) linkedImages(t *testing.T) {
	data := v1.Config{Volumes: map[string]struct{}{"/a/data": {}}}
	for what, c := range map[string]struct {
		config v1.Config
		entry  Entry
	}{
		"workspace is a link":          {entry: Entry{Name: "workspace", Link: "/etc"}},
		"workspace is a relative link": {entry: Entry{Name: "workspace", Link: "../../proc"}},
		"workspace is a dangling link": {entry: Entry{Name: "workspace", Link: "/nowhere"}},
		"workspace is a file":          {entry: Entry{Name: "workspace", Data: "x"}},
		"tmp is a link":                {entry: Entry{Name: "tmp", Link: "/workspace"}},
		"guest's directory is a link":  {entry: Entry{Name: ".workcell", Link: "/etc"}},
		"volume below a link":          {data, Entry{Name: "a", Link: "/proc"}},
		"users in the workspace":       {entry: Entry{Name: "etc/passwd", Link: "/workspace/users"}},
		"users over the guest":         {entry: Entry{Name: "etc/passwd", Link: "/.workcell/workcell-guest"}},
		"users in proc":                {entry: Entry{Name: "etc/passwd", Link: "/proc/1/environ"}},
		"users outside":                {entry: Entry{Name: "etc/group", Link: "../../../../../../etc/passwd"}},
		"users are a pipe":             {entry: Entry{Name: "etc/passwd", Pipe: true}},
		"users are a directory":        {entry: Entry{Name: "etc/passwd/"}},
		"users are huge":               {entry: Entry{Name: "etc/group", Data: strings.Repeat("x:x:1:\n", 1<<19)}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			spec := s.lone(t)
			spec.Image = s.h.Images.Put(t, BuildImage(t, c.config, c.entry, Unique()))
			info, err := s.b.Create(t.Context(), spec)
			if err != nil {
				forAgents(t, err)
				return
			}
			defer Remove(t, s.b, info.ID)
			stream, err := s.b.Dial(t.Context(), info.ID)
			if errors.Is(err, backend.ErrLost) { // the guest agent found no workspace
				return
			}
			must(t, err)
			conn, err := client.New(t.Context(), stream)
			if errors.Is(err, client.ErrConnLost) { // just exited
				Eventually(t, "the sandbox is lost", func() bool {
					_, err := s.b.Dial(t.Context(), info.ID)
					return errors.Is(err, backend.ErrLost)
				})
				return
			}
			must(t, err)
			defer conn.Close() //nolint:errcheck // of no interest
			if h := conn.Hello(); h.UID != 1000 || h.PID != 1 {
				t.Errorf("hello %+v", h)
			}
		})
	}
}

// unsafeImages verifies that unsafe images are rejected.
func (s *suite) unsafeImages(t *testing.T) {
	img := func(cfg v1.Config, entries ...Entry) v1.Image {
		return BuildImage(t, cfg, append(entries, Unique())...)
	}
	foreign := img(v1.Config{})
	file, err := foreign.ConfigFile()
	must(t, err)
	file = file.DeepCopy()
	file.Architecture = "s390x"
	foreign, err = mutate.ConfigFile(foreign, file)
	must(t, err)
	for what, c := range map[string]struct {
		img  v1.Image
		want error
	}{
		"volume over proc": {img(v1.Config{Volumes: map[string]struct{}{"/proc/sys": {}}}), backend.ErrInvalid},
		"huge environment": {img(v1.Config{Env: []string{"X=" + strings.Repeat("x", 200_000)}}), backend.ErrInvalid},
		"foreign platform": {foreign, backend.ErrUnsupported},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := s.backend(t) // a new backend without earlier calls to the engine
			spec := s.lone(t)
			spec.Image = s.h.Images.Put(t, c.img)
			info, err := b.Create(t.Context(), spec)
			if s.h.Cluster && err == nil { // only the node examines the image, and it stays inside the container
				defer Remove(t, s.b, info.ID)
				if h := s.dial(t, info.ID).Hello(); h.UID != 1000 || h.PID != 1 {
					t.Errorf("hello %+v", h)
				}
				return
			}
			if !errors.Is(err, c.want) && !s.h.Cluster {
				t.Errorf("Create: %v, want %v", err, c.want)
			}
		})
	}
}
