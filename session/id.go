package session

import (
	"crypto/rand"
	"encoding/base32"
	"regexp"
	"strings"
)

// Prefixes of ids, so that people can distinguish them.
const (
	sandboxPrefix = "sbx_"
	runPrefix     = "run_"
	execPrefix    = "exe_"
)

// idBytes is the entropy of an id: 128 bits.
const idBytes = 16

// NewID returns 128 random bits as 26 characters of lower-case base32. It holds no time and no counter.
func NewID() string {
	var b [idBytes]byte
	rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// NewRunID returns the id of a new run.
func NewRunID() string { return runPrefix + NewID() }

var sandboxID = regexp.MustCompile(`\A` + sandboxPrefix + `[a-z2-7]{26}\z`) // idBytes in base32

// validSandboxID reports whether id has the form that NewManager's sandboxes have.
func validSandboxID(id string) bool { return sandboxID.MatchString(id) }
