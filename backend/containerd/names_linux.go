package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"

	"github.com/containerd/containerd/v2/core/containers"

	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// sessionPrefix is how much of a session's name is in the names of its containers: containerd takes 76 characters.
const sessionPrefix = 32

// sandboxIDs matches our ids of sandboxes: the session's name, a dot, and what no other sandbox of the session has.
var sandboxIDs = regexp.MustCompile(`^([0-9a-f]{64})\.([A-Z2-7]{26})$`)

// sessionName names a session's workspace and lock, and begins the names of its containers.
func sessionName(session string) string {
	sum := sha256.Sum256([]byte("workcell\x00" + session))
	return hex.EncodeToString(sum[:])
}

// containerID names a container, and all that containerd, a shim and a runtime make of it. Every creation has a name of
// its own, because containerd may still be at work for one whose process died, and what it cleans up goes by the name
// alone.
func containerID(session, nonce string) string { return session[:sessionPrefix] + "." + nonce }

// namesOf splits a sandbox's id into the name of its session and the id of its container; false for what is no id of
// ours.
func namesOf(id string) (session, container string, ok bool) {
	m := sandboxIDs.FindStringSubmatch(id)
	if m == nil {
		return "", "", false
	}
	return m[1], containerID(m[1], m[2]), true
}

// others returns the records of a session's sandboxes, but for one, if any. There is at most one record, except where a
// process dies, or several installations make a sandbox of one session at the same time.
func (b *driver) others(ctx context.Context, session string, but *record) ([]*record, error) {
	list, err := kit.Call(ctx, b.calls, "look for sandboxes of the session", func(ctx context.Context) ([]containers.Container, error) {
		return b.api.ContainerService().List(ctx, "id~="+strconv.Quote("^"+session[:sessionPrefix]))
	})
	var out []*record
	for _, c := range list {
		if r, ok := readRecord(c); ok && r.session == session && (but == nil || r.id != but.id) {
			out = append(out, r)
		}
	}
	return out, err
}
