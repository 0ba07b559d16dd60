package images

import (
	"strings"
	"testing"
)

// TestAgents: every agent has an image for the most common architecture, each tarball is pinned, and the image without
// permission for redistribution is marked.
func TestAgents(t *testing.T) {
	list, err := Agents("amd64")
	must(t, err)
	private := map[string]bool{"claude": true, "codex": false, "opencode": false, "gemini": false}
	for _, im := range list {
		name, version, _ := strings.Cut(strings.TrimPrefix(im.Ref, "workcell/"), ":")
		want, ok := private[name]
		if !ok || im.Private != want || version == "" {
			t.Errorf("%s: private %v", im.Ref, im.Private)
		}
		delete(private, name)
		for _, l := range im.Layers {
			for _, p := range l.NPM {
				if !strings.HasPrefix(p.Integrity, "sha512-") || len(p.Integrity) != 95 {
					t.Errorf("%s: %s is not pinned", im.Ref, p.Name)
				}
			}
		}
	}
	if len(private) != 0 {
		t.Errorf("no image: %v", private)
	}
	if list, err := Agents("arm64"); err != nil || len(list) != 3 {
		t.Errorf("%d images for arm64, %v", len(list), err)
	}
}
