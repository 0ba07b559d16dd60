package admincmd

import (
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/engines"
)

// TestMissingImage verifies that the remedy for a missing image also names the flag for an image of a mirror.
func TestMissingImage(t *testing.T) {
	t.Parallel()
	const mirror = "; to use an image of a mirror, pass --map-image python:3=IMAGE"
	for name, want := range map[string]string{
		engines.Docker:     "docker pull python:3" + mirror,
		engines.Containerd: "ctr --namespace workcell images pull docker.io/library/python:3" + mirror,
		engines.Local:      "install it, for example with apt-get install python3 or nodejs",
	} {
		if got := (&engineReport{Name: name}).fetch("python:3"); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
