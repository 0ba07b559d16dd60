// Package embed contains the binaries of the guest agent. hack/build-guest.sh builds them. They are in the repository
// to allow using the library as an ordinary Go module.
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

// Path is the path of the guest agent in a sandbox.
const Path = Dir + "/workcell-guest"

// Mode is the mode of this file. If a user cannot read a program, the kernel denies other processes of the user access
// to the program's memory, from the first instruction on.
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

// Binary returns the guest agent's static Linux binary for an architecture, "amd64" or "arm64". Callers must not modify
// it. Binary is safe for concurrent use.
func Binary(arch string) ([]byte, error) {
	f := unpacked[arch]
	if f == nil {
		return nil, fmt.Errorf("no guest agent for architecture %q", arch)
	}
	return f()
}

// Arches returns the supported architectures of Binary.
func Arches() []string { return []string{"amd64", "arm64"} }

// Version returns the content version of the files from [Files]. It is a short hash of the binaries' sources,
// dependencies, and toolchain, and of the library. The guest agent sends the same version in the hello.
func Version() string { return strings.TrimSpace(version) }

func unpack(packed []byte) ([]byte, error) {
	var b []byte
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err == nil {
		b, err = io.ReadAll(z)
	}
	if err != nil {
		return nil, fmt.Errorf("embedded guest: %w", err)
	}
	return b, nil
}
