package local

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/workcell-dev/workcell/backend"
)

// hostImage is the value of Info.Image, because the host replaces the image.
const hostImage = "host"

// searchPath is the PATH of a sandbox's commands.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// program is the program of an image reference.
type program struct {
	file string // file name in searchPath
	hint string // how to install it
}

// programs returns the program of each supported repository, by full name.
func programs() map[string]program {
	shell := program{"sh", "a shell"}
	python := program{"python3", "Python 3 (on Debian: apt-get install python3)"}
	node := program{"node", "Node.js (on Debian: apt-get install nodejs)"}
	return map[string]program{
		"docker.io/library/host":   shell,
		"docker.io/library/debian": shell, "docker.io/workcell/debian": shell,
		"docker.io/library/python": python, "docker.io/workcell/python": python,
		"docker.io/library/node": node, "docker.io/workcell/node": node,
	}
}

// resolveImage returns the program of a full reference. It does not check whether the program is installed.
func resolveImage(ref string) (program, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return program{}, fmt.Errorf("local: image reference: %v: %w", err, backend.ErrInvalid)
	}
	_, pinned := named.(reference.Digested)
	p, ok := programs()[named.Name()]
	if !ok || pinned {
		return program{}, fmt.Errorf("local: only the host's programs are available, as \"host\", \"debian\", \"python\", "+
			"or \"node\"; use docker or containerd for image %s: %w", reference.FamiliarString(named), backend.ErrUnsupported)
	}
	return p, nil
}

// find checks whether the program exists in the part of the host visible in a sandbox.
func (p program) find() error {
	for dir := range strings.SplitSeq(searchPath, ":") {
		real, err := filepath.EvalSymlinks(path.Join(dir, p.file))
		if err != nil || !visible(real) {
			continue
		}
		if st, err := os.Stat(real); err == nil && st.Mode().IsRegular() && st.Mode()&0o001 != 0 {
			return nil
		}
	}
	return fmt.Errorf("local: %s not found below /usr or /bin; install %s, or use docker or containerd: %w",
		p.file, p.hint, backend.ErrImage)
}

// visible reports whether a sandbox sees a path of the host. The path must not contain links.
func visible(p string) bool {
	return slices.ContainsFunc(systemDirs(), func(dir string) bool { return strings.HasPrefix(p, dir+"/") })
}

// systemDirs returns the existing system directories of the host visible in a sandbox.
func systemDirs() []string {
	return []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}
}
