// Package install installs Workcell into the cluster of `make cluster` with Helm, like users do, and uses the cluster
// from the command line. It requires root to load the command's image into the node.
package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

var must = checktest.Must

// image is the command's image, as named in hack/images, the chart, and the manifests.
const image = "ghcr.io/workcell-dev/workcell:dev"

// patience is the maximum wait for an expected event. Hosts with running tests may be very busy.
const patience = 5 * time.Minute

// imagesDir is the directory filled by hack/images, with the command and the image as an archive.
var imagesDir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "install-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	imagesDir = dir
	if out, err := root("go", "run", "./hack/images", "-arch", runtime.GOARCH, dir).CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the image of the command: %v: %s\n", err, out)
		return 1
	}
	return clustertest.Main(m)
}

// root returns a program that runs in the repository's root directory.
func root(program string, args ...string) *exec.Cmd {
	c := exec.Command(program, args...)
	c.Dir = filepath.Join("..", "..")
	return c
}
