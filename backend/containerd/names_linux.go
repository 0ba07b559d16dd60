package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
)

// sessionPrefix is the length of the session name's part in container names, because containerd allows 76 characters.
const sessionPrefix = 32

// sandboxIDs matches sandbox IDs: the session's name, a dot, and a part unique among the session's sandboxes.
var sandboxIDs = regexp.MustCompile(`^([0-9a-f]{64})\.([A-Z2-7]{26})$`)

// sessionName returns the name of a session's workspace and lock. It is also the prefix of its container names.
func sessionName(session string) string {
	sum := sha256.Sum256([]byte("workcell\x00" + session))
	return hex.EncodeToString(sum[:])
}

// containerID returns the name of a container. containerd, its shim, and the runtime use this name for all their
// objects. Every creation has a unique name, because containerd may still be working on a container of a dead process,
// and the cleanup only uses the name.
func containerID(session, nonce string) string { return session[:sessionPrefix] + "." + nonce }

// namesOf splits a sandbox ID into the names of the session and the container. It returns false if id is not a sandbox
// ID.
func namesOf(id string) (session, container string, ok bool) {
	m := sandboxIDs.FindStringSubmatch(id)
	if m == nil {
		return "", "", false
	}
	return m[1], containerID(m[1], m[2]), true
}

// others returns the records of a session's sandboxes, except the record but. At most one record exists, unless a
// process died or several installations created a sandbox of the session at the same time.
func (b *driver) others(ctx context.Context, session string, but *record) ([]*record, error) {
	filter := "id~=" + strconv.Quote("^"+session[:sessionPrefix])
	list, err := b.listContainers(ctx, "look for sandboxes of the session", filter)
	var out []*record
	for _, c := range list {
		if r, ok := readRecord(c); ok && r.session == session && (but == nil || r.id != but.id) {
			out = append(out, r)
		}
	}
	return out, err
}
