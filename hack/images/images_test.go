package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/workcell-dev/workcell/internal/checktest"
)

var must = checktest.Must

// TestImages builds the images once, pushes them to a registry, and checks the results in the same way as users would:
// the layout, the bills of materials, the registry's list of referrers, and a container in Docker.
func TestImages(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	host := httptest.NewServer(registry.New(registry.WithReferrersSupport(true)))
	defer host.Close()
	dir := t.TempDir()
	pushed := strings.TrimPrefix(host.URL, "http://") + "/workcell:v1.2.3"
	tag := "workcell/images-test:" + strings.ToLower(filepath.Base(filepath.Dir(dir)))
	o := options{version: "v1.2.3", tag: tag, arch: strings.Split(architectures, ","), push: pushed, created: time.Unix(1700000000, 0).UTC()}
	must(t, o.write(t.Context(), dir))

	path, err := layout.FromPath(filepath.Join(dir, "layout"))
	must(t, err)
	top, err := path.ImageIndex()
	must(t, err)
	all := manifest(t, top)
	arches := strings.Split(architectures, ",")
	if len(all.Manifests) != 1+len(arches) {
		t.Fatalf("the layout has %d manifests, want an index and a bill for each architecture", len(all.Manifests))
	}
	index, err := top.ImageIndex(all.Manifests[0].Digest)
	must(t, err)
	ref, err := name.ParseReference(pushed)
	must(t, err)
	for i, d := range manifest(t, index).Manifests {
		arch := arches[i]
		if d.Platform == nil || d.Platform.String() != "linux/"+arch {
			t.Errorf("manifest %d is of %v, want linux/%s", i, d.Platform, arch)
		}
		img, err := index.Image(d.Digest)
		must(t, err)
		config, err := img.ConfigFile()
		must(t, err)
		if config.Config.User != user || config.Architecture != arch {
			t.Errorf("the image runs as %q on %s, want %q on %s", config.Config.User, config.Architecture, user, arch)
		}
		checkBill(t, filepath.Join(dir, "workcell-linux-"+arch))
		list, err := remote.Referrers(ref.Context().Digest(d.Digest.String()), remote.WithContext(t.Context()))
		must(t, err)
		if got := manifest(t, list).Manifests; len(got) != 1 || got[0].ArtifactType != string(billType) {
			t.Errorf("the registry lists %+v for linux/%s, want its bill of materials", got, arch)
		}
	}
	runOnDocker(t, filepath.Join(dir, "workcell-linux-"+runtime.GOARCH+".tar"), tag)
}

// TestUsualTag: the chart, the manifests, and the Compose files use the default image name of hack/images.
func TestUsualTag(t *testing.T) {
	t.Parallel()
	repository, tag, _ := strings.Cut(usualTag, ":")
	for file, want := range map[string]string{
		"helm/workcell/values.yaml": "repository: " + repository + "\n",
		"helm/workcell/Chart.yaml":  "appVersion: " + tag + "\n",
		"kubernetes/workcell.yaml":  `image: "` + usualTag + `"`,
		"compose/compose.yaml":      "image: " + repository + ":${WORKCELL_VERSION:-" + tag + "}\n",
		"compose/socket.yaml":       "image: " + repository + ":${WORKCELL_VERSION:-" + tag + "}\n",
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", file))
		must(t, err)
		if !strings.Contains(string(text), want) {
			t.Errorf("%s does not contain %q", file, want)
		}
	}
}

func manifest(t *testing.T, index v1.ImageIndex) *v1.IndexManifest {
	t.Helper()
	m, err := index.IndexManifest()
	must(t, err)
	return m
}

// checkBill compares a bill of materials with the output of the go command for the binary.
func checkBill(t *testing.T, binary string) {
	t.Helper()
	raw, err := os.ReadFile(binary + ".spdx.json")
	must(t, err)
	var doc struct {
		SPDXVersion   string
		Packages      []struct{ Name, VersionInfo string }
		Relationships []struct{ RelationshipType string }
	}
	must(t, json.Unmarshal(raw, &doc))
	info, err := buildinfo.ReadFile(binary)
	must(t, err)
	has := map[string]string{}
	for _, p := range doc.Packages {
		has[p.Name] = p.VersionInfo
	}
	if doc.SPDXVersion != "SPDX-2.3" || has[info.Main.Path] != "v1.2.3" || has["stdlib"] != info.GoVersion {
		t.Errorf("the bill of %s is %s of %s %q, Go %q", binary, doc.SPDXVersion, info.Main.Path, has[info.Main.Path], has["stdlib"])
	}
	if want := len(info.Deps) + 2; len(doc.Packages) != want || len(doc.Relationships) != want {
		t.Errorf("the bill of %s has %d packages and %d relationships, want %d", binary, len(doc.Packages), len(doc.Relationships), want)
	}
	for _, m := range info.Deps {
		if has[m.Path] != m.Version {
			t.Errorf("the bill of %s has %s %q, want %s", binary, m.Path, has[m.Path], m.Version)
		}
	}
}

// runOnDocker runs the command in a container without privileges.
func runOnDocker(t *testing.T, archive, tag string) {
	t.Helper()
	docker := func(args ...string) string {
		t.Helper()
		var stderr bytes.Buffer
		c := exec.Command("docker", args...)
		c.Stderr = &stderr
		out, err := c.Output()
		if err != nil {
			t.Fatalf("docker %v: %v: %s", args, err, &stderr)
		}
		return string(out)
	}
	docker("load", "--input", archive)
	defer docker("image", "rm", tag)
	if out := docker("run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL", tag, "version"); !strings.Contains(out, "v1.2.3") {
		t.Errorf("the command in the container says %q, want v1.2.3", out)
	}
}
