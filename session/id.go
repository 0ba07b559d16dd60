package session

import (
	"crypto/rand"
	"encoding/base32"
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

// validSandboxID reports whether id has the form that NewManager's sandboxes have.
func validSandboxID(id string) bool {
	rest, ok := strings.CutPrefix(id, sandboxPrefix)
	if !ok || len(rest) != base32.StdEncoding.WithPadding(base32.NoPadding).EncodedLen(idBytes) {
		return false
	}
	for _, c := range []byte(rest) {
		if (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}
