package record

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// maxUID is the largest user or group id: engines keep it in a signed 32-bit number.
const maxUID = 1<<31 - 1

// ParseUser returns the user of a sandbox as "uid:gid", or backend.ErrInvalid. A lone uid takes the same number as
// its group, "root" is 0:0; other names would need the image's own user list, which nobody vouches for.
func ParseUser(user string) (string, error) {
	switch user {
	case "":
		return backend.DefaultUser, nil
	case "root":
		return "0:0", nil
	}
	uidText, gidText, both := strings.Cut(user, ":")
	if !both {
		gidText = uidText
	}
	uid, uidErr := parseID(uidText)
	gid, gidErr := parseID(gidText)
	if uidErr != nil || gidErr != nil {
		return "", fmt.Errorf("%w: invalid user %q: must be uid or uid:gid with numbers up to %d",
			backend.ErrInvalid, sanitize.Message(user), maxUID)
	}
	return fmt.Sprintf("%d:%d", uid, gid), nil
}

// IsRoot reports whether a result of ParseUser is root, by user or group.
func IsRoot(user string) bool { return strings.HasPrefix(user, "0:") || strings.HasSuffix(user, ":0") }

// parseID reads a plain decimal user or group id.
func parseID(text string) (int64, error) {
	if strings.ContainsAny(text, "+-") {
		return 0, strconv.ErrSyntax
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id > maxUID {
		return 0, strconv.ErrRange
	}
	return id, nil
}
