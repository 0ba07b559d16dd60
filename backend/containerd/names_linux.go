package containerd

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// sessionPrefix is the length of the session name's part in container names. containerd allows 76 characters, and a
// container name has 32 + 1 + 26 = 59. With the whole session name it would have 64 + 1 + 26 = 91.
const sessionPrefix = 32

// sandboxIDs matches sandbox IDs: the session's name, a dot, and a part unique among the session's sandboxes.
var sandboxIDs = regexp.MustCompile(`^([0-9a-f]{64})\.([A-Z2-7]{26})$`)

// sessionName is the name of a session's workspace and lock. The first part is also the prefix of the names of the
// session's containers.
type sessionName string

// nameOf returns the name of a session.
func nameOf(sessionID string) sessionName {
	sum := sha256.Sum256([]byte("workcell\x00" + sessionID))
	return sessionName(hex.EncodeToString(sum[:]))
}

// prefix returns the first part of the names of the session's containers.
func (s sessionName) prefix() string { return string(s[:sessionPrefix]) }

// containerID returns the name of a container. containerd, its shim, and the runtime use this name for all their
// objects. Every creation has a unique name, because containerd may still be working on a container of a dead process,
// and the cleanup only uses the name.
func containerID(s sessionName, nonce string) string { return s.prefix() + "." + nonce }

// namesOf splits a sandbox ID into the names of the session and the container. It returns false if id is not a sandbox
// ID.
func namesOf(id string) (session sessionName, container string, ok bool) {
	m := sandboxIDs.FindStringSubmatch(id)
	if m == nil {
		return "", "", false
	}
	session = sessionName(m[1])
	return session, containerID(session, m[2]), true
}
