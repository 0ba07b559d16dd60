package kit

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/backend"
)

// maxLabels bounds the user's labels, in bytes.
const maxLabels = 64 * 1024

var sessionIDs = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// IsSessionID tells whether s can be a session's id.
func IsSessionID(s string) bool { return sessionIDs.MatchString(s) }

// CheckSpec refuses, with backend.ErrInvalid or ErrTooLarge, what no driver takes, whatever its engine can do. It does not
// look at the image, the network, the runtime and the platform, on which drivers differ.
func CheckSpec(s backend.Spec) error {
	switch {
	case !IsSessionID(s.ID):
		return fmt.Errorf("session id %.140q: %w", s.ID, backend.ErrInvalid)
	case s.Root != backend.RootReadonly && s.Root != backend.RootWritable:
		return fmt.Errorf("root mode %d: %w", s.Root, backend.ErrInvalid)
	case s.Pull != "" && s.Pull != backend.PullMissing && s.Pull != backend.PullAlways && s.Pull != backend.PullNever:
		return fmt.Errorf("pull policy %.40q: %w", s.Pull, backend.ErrInvalid)
	case s.OrphanTimeout < 0:
		return fmt.Errorf("orphan timeout %v: %w", s.OrphanTimeout, backend.ErrInvalid)
	}
	if err := s.Limits.Validate(); err != nil {
		return err
	}
	return checkLabels(s.Labels)
}

func checkLabels(labels map[string]string) error {
	size := 0
	for k, v := range labels {
		if k == "" || strings.HasPrefix(k, backend.LabelPrefix) {
			return fmt.Errorf("label %.100q is reserved: %w", k, backend.ErrInvalid)
		}
		size += len(k) + len(v)
	}
	if size > maxLabels {
		return fmt.Errorf("labels of %d bytes, at most %d: %w", size, maxLabels, backend.ErrTooLarge)
	}
	return nil
}

// User is a numeric user and group.
type User struct{ UID, GID uint32 }

// String gives the form that ParseUser takes.
func (u User) String() string { return fmt.Sprintf("%d:%d", u.UID, u.GID) }

// ParseUser takes "uid:gid" or "uid" in numbers, and nothing for the default: a name would be looked up in the image, which
// says what it likes.
func ParseUser(s string) (User, error) {
	if s == "" {
		s = backend.DefaultUser
	}
	u, g, ok := strings.Cut(s, ":")
	if !ok {
		g = u
	}
	uid, err1 := strconv.ParseUint(u, 10, 31)
	gid, err2 := strconv.ParseUint(g, 10, 31)
	if err1 != nil || err2 != nil {
		return User{}, fmt.Errorf("user %.40q is not uid:gid in numbers below 2147483648: %w", s, backend.ErrInvalid)
	}
	return User{UID: uint32(uid), GID: uint32(gid)}, nil
}
