package kit_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

func TestParseUser(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "1000:1000", "5": "5:5", "0:0": "0:0", "2147483647:1": "2147483647:1", "007:08": "7:8"} {
		if got, err := kit.ParseUser(in); err != nil || got.String() != want {
			t.Errorf("user %q: %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"root", "1000:", ":1000", "-1", "4294967296", "2147483648:0", "1:1:1", "1 ", "0x10", "1e3", "１"} {
		if got, err := kit.ParseUser(in); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("user %q: %q, %v, want ErrInvalid", in, got, err)
		}
	}
}

func TestJudgeImage(t *testing.T) {
	t.Parallel()
	set := func(vs ...string) map[string]struct{} {
		m := map[string]struct{}{}
		for _, v := range vs {
			m[v] = struct{}{}
		}
		return m
	}
	got, err := kit.JudgeImage(nil, set("/data/", "/data", "/var/lib/x", "/workspace", "/tmp", "/.workcell", "/tmp/cache"))
	if diff := cmp.Diff([]string{"/data", "/tmp/cache", "/var/lib/x"}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	many := map[string]struct{}{}
	for i := range 100 {
		many["/v"+string(rune('a'+i%26))+string(rune('a'+i/26))] = struct{}{}
	}
	for _, bad := range []map[string]struct{}{
		set("/"), set("/etc"), set("/etc/passwd"), set("/proc/sys"), set("/dev"), set("/sys/fs"), set("/usr"), set("relative"), set(""),
		set("/workspace/data"), set("/.workcell/x"), set("/a/../proc"), set("/a:b"), set("/a,b"), set("/a\x00"), set("/" + strings.Repeat("x", 2000)), many,
	} {
		if got, err := kit.JudgeImage(nil, bad); err == nil {
			t.Errorf("volumes %.80v: %v, want an error", bad, got)
		}
	}
}

// TestHiddenEnvironment verifies that packages are not installed where a volume of the image would hide them.
func TestHiddenEnvironment(t *testing.T) {
	t.Parallel()
	for _, volume := range []string{"/opt", "/opt/workcell", "/opt/workcell/bin", "/opt/work"} {
		_, err := new(kit.Plan).EnvironmentName("digest", "/data", volume)
		if errors.Is(err, backend.ErrInvalid) == (volume == "/opt/work") {
			t.Errorf("%s: %v", volume, err)
		}
	}
}

// TestRootBytes verifies that a writable root has a limit, and that a single file can exceed this limit at most once.
// The default workspace size does not limit the root.
func TestRootBytes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		asked, root, file int64
		mode              backend.RootMode
		enforcement       backend.Enforcement
	}{
		{0, 0, 500 << 20, backend.RootReadonly, backend.WorkspaceWatched},
		{0, 4 << 30, 4 << 30, backend.RootWritable, backend.WorkspaceWatched},
		{8 << 20, 0, 16 << 30, backend.RootReadonly, backend.WorkspaceSized},
		{8 << 20, 0, 8 << 20, backend.RootReadonly, backend.WorkspaceWatched},
		{8 << 20, 8 << 20, 16 << 20, backend.RootWritable, backend.WorkspaceSized},
		{8 << 20, 8 << 20, 8 << 20, backend.RootWritable, backend.WorkspaceWatched},
		{64 << 10, 4 << 20, 128 << 10, backend.RootWritable, backend.WorkspaceSized},
	} {
		asked := backend.Limits{WorkspaceBytes: c.asked}
		p, err := kit.NewPlan("x", backend.Spec{ID: "sbx_1", Image: "x", Root: c.mode, Limits: asked}, nil, backend.Limits{})
		if err != nil || p.Sized != (c.asked > 0) {
			t.Fatalf("requested %d: %+v, %v", c.asked, p, err)
		}
		if file := kit.FileBytes(p.Spec.Limits, c.enforcement, p.Root); p.Root != c.root || file != c.file {
			t.Errorf("%+v: %d bytes, files of %d", c, p.Root, file)
		}
	}
}
