package record

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// idBits is the size of user and group ids, because engines store ids as signed 32-bit numbers.
const idBits = 31

// ParseUser returns the user of a sandbox as "uid:gid". An empty user is backend.DefaultUser. A single uid is also the
// gid, and "root" is 0:0. Ids are decimal numbers from 0 to 2147483647. For any other name, ParseUser returns an error
// wrapping backend.ErrInvalid, because it would need the image's user list, which is untrusted.
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
	uid, uidErr := strconv.ParseUint(uidText, 10, idBits)
	gid, gidErr := strconv.ParseUint(gidText, 10, idBits)
	if uidErr != nil || gidErr != nil {
		return "", fmt.Errorf("%w: invalid user %q: must be uid or uid:gid with numbers up to %d",
			backend.ErrInvalid, sanitize.Message(user), 1<<idBits-1)
	}
	return fmt.Sprintf("%d:%d", uid, gid), nil
}

// IsRoot reports whether a result of ParseUser has user 0 or group 0.
func IsRoot(user string) bool { return strings.HasPrefix(user, "0:") || strings.HasSuffix(user, ":0") }
