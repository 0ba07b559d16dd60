package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestHostileConfig has an image whose configuration wants everything at once; the sandbox is as ever.
func TestHostileConfig(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	base := exported(t, debianImage)
	file, err := base.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.Config = v1.Config{
		User:       "root",
		Entrypoint: []string{"/bin/sh", "-c", "echo owned > /workspace/owned"},
		Cmd:        []string{"sleep", "1"},
		WorkingDir: "/proc/self/fd/8",
		Env:        []string{"PATH=/evil", "GODEBUG=inittrace=1", "GOGC=off", "GOMAXPROCS=1", "GOTRACEBACK=crash", "LD_PRELOAD=/evil.so", "HUGE=" + strings.Repeat("x", 60_000)},
		Volumes: map[string]struct{}{
			"/data": {}, "/var/lib/x/y": {}, "/workspace": {}, "/tmp": {}, "/.workcell": {},
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
	if err != nil {
		t.Fatal(err)
	}
	spec := newSpec()
	spec.Image = loadImage(t, img)
	info := create(t, b, spec)
	if len(info.ImageEnv) != 7 || len(info.Labels) != 0 || info.SessionID != spec.ID || info.Instance != instance || info.Run != spec.Run {
		t.Errorf("info: %d variables, labels %v, session %s of %s, run %s", len(info.ImageEnv), info.Labels, info.SessionID, info.Instance, info.Run)
	}
	conn := dial(t, b, info.ID)
	got := sh(t, conn, `id -u; pwd; ls /workspace; env | grep -c -e HUGE -e LD_PRELOAD -e GO; true`)
	if want := "1000\n/workspace\n0\n"; got != want {
		t.Errorf("inside: %q, want %q", got, want)
	}
	for _, dir := range []string{"/data", "/var/lib/x/y"} {
		sh(t, conn, "echo x > "+dir+"/f")
		if res := run(t, conn, "sh", "-c", "dd if=/dev/zero of="+dir+"/big bs=1M count=70"); !strings.Contains(string(res.Stderr.Head), "No space left") {
			t.Errorf("%s: exit %d, %s", dir, res.ExitCode, res.Stderr.Head)
		}
		sh(t, conn, "rm "+dir+"/big")
	}
	found, err := engineAPI(t).ContainerService().Get(t.Context(), info.ID)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(found.Spec.GetValue()); strings.Contains(text, "evil") || strings.Contains(text, "owned") {
		t.Errorf("the image steers the container: %s", text)
	}
}

// exported gives one of the engine's images as it is.
func exported(t *testing.T, ref string) v1.Image {
	t.Helper()
	api := engineAPI(t)
	path := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Export(t.Context(), f, archive.WithImage(api.ImageService(), "docker.io/"+ref)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(path, &tag)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestScratchImage has nothing inside: the guest needs nothing.
func TestScratchImage(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	for i, img := range []v1.Image{
		buildImage(t, v1.Config{}, unique()),
		buildImage(t, v1.Config{}, unique(), entry{name: "tmp/", mode: 0o555}, entry{name: "workspace/", mode: 0o700}, entry{name: "workspace/from-image", data: "x"}),
		buildImage(t, v1.Config{}, unique(), entry{name: "bin/"}, entry{name: "bin/sh", data: "not a program"}, entry{name: ".workcell/"}, entry{name: ".workcell/workcell-guest", data: "evil"}),
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			spec := newSpec()
			spec.Image = loadImage(t, img)
			conn := dial(t, b, create(t, b, spec).ID)
			if h := conn.Hello(); h.UID != 1000 || h.PID != 1 || h.Workdir != backend.Workdir {
				t.Errorf("hello %+v", h)
			}
			data := strings.NewReader("hello")
			if _, err := conn.PutFile(t.Context(), wire.FilePutRequest{Path: "dir/file", Size: 5}, data); err != nil {
				t.Errorf("PutFile: %v", err)
			}
			var we *wire.Error
			_, err := conn.Run(t.Context(), wire.RunRequest{Spawn: wire.Spawn{Argv: []string{"/bin/sh", "-c", "true"}}, ExecID: "x", YieldMillis: -1})
			if !errors.As(err, &we) || we.Code != wire.CodeLaunch {
				t.Errorf("running a missing program: %v", err)
			}
		})
	}
}

// TestRefusedImages cannot be made safe; nothing of them runs.
func TestRefusedImages(t *testing.T) {
	t.Parallel()
	volumes := func(vs ...string) v1.Config {
		m := map[string]struct{}{}
		for _, v := range vs {
			m[v] = struct{}{}
		}
		return v1.Config{Volumes: m}
	}
	foreign := buildImage(t, v1.Config{}, unique())
	file, err := foreign.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.Architecture = "s390x"
	if foreign, err = mutate.ConfigFile(foreign, file); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		img  v1.Image
		want error
	}{
		"workspace is a link":          {buildImage(t, v1.Config{}, unique(), entry{name: "workspace", link: "/etc"}), backend.ErrInvalid},
		"workspace is a relative link": {buildImage(t, v1.Config{}, unique(), entry{name: "workspace", link: "../../proc"}), backend.ErrInvalid},
		"workspace is a dangling link": {buildImage(t, v1.Config{}, unique(), entry{name: "workspace", link: "/nowhere"}), backend.ErrInvalid},
		"workspace is a file":          {buildImage(t, v1.Config{}, unique(), entry{name: "workspace", data: "x"}), backend.ErrInvalid},
		"tmp is a link":                {buildImage(t, v1.Config{}, unique(), entry{name: "tmp", link: "/workspace"}), backend.ErrInvalid},
		"guest's directory is a link":  {buildImage(t, v1.Config{}, unique(), entry{name: ".workcell", link: "/etc"}), backend.ErrInvalid},
		"volume is a link":             {buildImage(t, volumes("/data"), unique(), entry{name: "data", link: "/workspace"}), backend.ErrInvalid},
		"volume below a link":          {buildImage(t, volumes("/a/data"), unique(), entry{name: "a", link: "/proc"}), backend.ErrInvalid},
		"volume at the root":           {buildImage(t, volumes("/"), unique()), backend.ErrInvalid},
		"volume over proc":             {buildImage(t, volumes("/proc/sys"), unique()), backend.ErrInvalid},
		"volume over etc":              {buildImage(t, volumes("/etc"), unique()), backend.ErrInvalid},
		"volume in the guest's":        {buildImage(t, volumes("/.workcell/x"), unique()), backend.ErrInvalid},
		"huge environment":             {buildImage(t, v1.Config{Env: []string{"X=" + strings.Repeat("x", 200_000)}}, unique()), backend.ErrInvalid},
		"foreign platform":             {foreign, backend.ErrUnsupported},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBackend(t, nil) // one that has not seen the guest's volume yet
			spec := newSpec()
			spec.Image = loadAnyImage(t, c.img)
			if _, err := b.Create(t.Context(), spec); !errors.Is(err, c.want) {
				t.Errorf("Create: %v, want %v", err, c.want)
			}
			nothingLeft(t, spec.ID)
		})
	}
}
