// Package embed holds the guest's binaries. hack/build-guest.sh makes them; they are in the repository so that the
// library works as an ordinary Go module.
package embed

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"strings"
	"sync"
)

// Path is where a sandbox finds the guest.
const Path = Dir + "/workcell-guest"

// Mode is the file's mode there: the memory of a program that its user cannot read is closed to other processes of that
// user from its first instruction.
const Mode = 0o111

//go:embed guest_linux_amd64.gz
var amd64 []byte

//go:embed guest_linux_arm64.gz
var arm64 []byte

//go:embed version.txt
var version string

var unpacked = map[string]func() ([]byte, error){
	"amd64": sync.OnceValues(func() ([]byte, error) { return unpack(amd64) }),
	"arm64": sync.OnceValues(func() ([]byte, error) { return unpack(arm64) }),
}

// Binary returns the static Linux binary of the guest for an architecture, "amd64" or "arm64". Callers must not change
// it. Safe for concurrent use.
func Binary(arch string) ([]byte, error) {
	f := unpacked[arch]
	if f == nil {
		return nil, fmt.Errorf("no guest agent for architecture %q", arch)
	}
	return f()
}

// Arches lists the architectures that Binary knows.
func Arches() []string { return []string{"amd64", "arm64"} }

// Version is the content version of what [Files] returns: a short hash over the sources of the binaries, their
// dependencies and toolchain, and over the library. The guest returns the same in its hello.
func Version() string { return strings.TrimSpace(version) }

func unpack(packed []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("embedded guest: %w", err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("embedded guest: %w", err)
	}
	return b, nil
}
