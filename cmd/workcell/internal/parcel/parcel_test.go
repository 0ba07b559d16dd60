package parcel_test

import (
	"archive/zip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/parcel"
	"github.com/workcell-dev/workcell/internal/checktest"
)

var must = checktest.Must

// write writes files to a new directory.
func write(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	return dir
}

// contents returns the files below a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(os.DirFS(dir), name)
		all[name] = string(raw)
		return err
	}))
	return all
}

// pack writes a parcel and returns the path.
func pack(t *testing.T, f parcel.Files) string {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "parcel.zip"))
	must(t, err)
	must(t, f.Write(out))
	must(t, out.Close())
	return out.Name()
}

// TestThereAndBack verifies that packed files are extracted unchanged. Agents of several directories keep their own
// partials and skills, and other files of these directories are not packed.
func TestThereAndBack(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{
		"flow [1].yaml": "id: flow", "secret": "not requested", "script.yml": "agents: {}", "prices.yaml": "{}", "base": "workspace",
		"a*/one.prompt": "one", "a*/two.prompt": "two", "a*/_shared.prompt": "shared", "a*/other.prompt": "not requested",
		"ab/three.prompt": "three", "ab/_shared.prompt": "another", "ab/skills/s/SKILL.md": "skill", "ab/skills/s/deep/file": "deep",
		"ab/skills/not/SKILL.md": "not requested",
	})
	must(t, os.Symlink("SKILL.md", filepath.Join(dir, "ab", "skills", "s", "link")))
	at := func(name string) string { return filepath.Join(dir, filepath.FromSlash(name)) }
	packed := pack(t, parcel.Files{
		Workflow: at("flow [1].yaml"), Script: at("script.yml"), Prices: at("prices.yaml"), Base: at("base"),
		Agents: map[string]string{"one": at("a*/one.prompt"), "two": at("a*/two.prompt"), "three": at("ab/three.prompt")},
		Skills: map[string][]string{"three": {"skills/s"}},
	})
	to := filepath.Join(t.TempDir(), "new")
	f, err := parcel.Extract(packed, to)
	must(t, err)
	got := map[string]string{}
	for _, file := range []string{f.Workflow, f.Script, f.Prices, f.Base, f.Agents["one"], f.Agents["two"], f.Agents["three"]} {
		raw, err := os.ReadFile(file)
		must(t, err)
		got[filepath.Base(file)] = string(raw)
		if !strings.HasPrefix(file, to) {
			t.Errorf("%s is elsewhere", file)
		}
	}
	want := map[string]string{
		"flow [1].yaml": "id: flow", "script.yml": "agents: {}", "prices.yaml": "{}", "base.zip": "workspace",
		"one.prompt": "one", "two.prompt": "two", "three.prompt": "three",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"one.prompt": "one", "two.prompt": "two", "_shared.prompt": "shared"}, contents(t, filepath.Dir(f.Agents["one"]))); diff != "" {
		t.Errorf("in the directory of the first agent (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"three.prompt": "three", "_shared.prompt": "another", "skills/s/SKILL.md": "skill", "skills/s/link": "skill", "skills/s/deep/file": "deep"},
		contents(t, filepath.Dir(f.Agents["three"]))); diff != "" {
		t.Errorf("in the directory of the third agent (-want +got):\n%s", diff)
	}
}

// TestLinksOut verifies that files outside of the directory of the workflow or agent are never packed.
func TestLinksOut(t *testing.T) {
	t.Parallel()
	for _, link := range []string{"flow.yaml", "agents/a.prompt", "agents/_b.prompt", "agents/skills/s/link"} {
		dir := write(t, map[string]string{
			"secret": "s", "in/flow.yaml": "id: flow", "in/agents/a.prompt": "a", "in/agents/skills/s/SKILL.md": "skill",
		})
		at := func(name string) string { return filepath.Join(dir, "in", filepath.FromSlash(name)) }
		_ = os.Remove(at(link)) // some links are new
		out, err := filepath.Rel(filepath.Dir(at(link)), filepath.Join(dir, "secret"))
		must(t, errors.Join(err, os.Symlink(out, at(link))))
		f := parcel.Files{
			Workflow: at("flow.yaml"), Agents: map[string]string{"a": at("agents/a.prompt")},
			Skills: map[string][]string{"a": {"skills/s"}},
		}
		if err := f.Write(&strings.Builder{}); err == nil || !strings.Contains(err.Error(), "cannot pack") {
			t.Errorf("%s: %v", link, err)
		}
	}
}

// TestStrangeParcels verifies that other files than parcels, and entries outside of the directory, are
// rejected.
func TestStrangeParcels(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("a/", 30_000)
	for name, files := range map[string]map[string]string{
		"too many":      {"parcel.json": "{}", deep + "1": "", deep + "2": "", deep + "3": "", deep + "4": ""},
		"nothing in it": {},
		"a way out":     {"../out": "x", "parcel.json": "{}"},
		"names outside": {"parcel.json": `{"workflow": "../../etc/passwd"}`},
		"no JSON":       {"parcel.json": "workflow"},
	} {
		path := filepath.Join(t.TempDir(), "p.zip")
		out, err := os.Create(path)
		must(t, err)
		z := zip.NewWriter(out)
		for name, text := range files {
			w, err := z.Create(name)
			must(t, err)
			_, err = w.Write([]byte(text))
			must(t, err)
		}
		must(t, z.Close())
		must(t, out.Close())
		dir := t.TempDir()
		if f, err := parcel.Extract(path, filepath.Join(dir, "in")); err == nil {
			t.Errorf("%s: %+v", name, f)
		}
		if _, err := os.Stat(filepath.Join(dir, "out")); err == nil {
			t.Errorf("%s: it got out", name)
		}
	}
}
