package kit

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distribution/reference"

	"github.com/workcell-dev/workcell/backend"
)

// maxLabels is the maximum total size of the user's labels, in bytes.
const maxLabels = 64 * 1024

// Plan is a checked Spec with all defaults filled in.
type Plan struct {
	Spec  backend.Spec   // with the resolved limits of the sandbox
	Asked backend.Limits // limits requested by the Spec
	Ref   string         // full form of the image reference
	Image string         // short form for display in the engine's own listings
	User  User           //
	Root  int64          // see rootBytesOf
	Sized bool           // the Spec or the options set a workspace size; if false, the guest agent watches the default

	Isolation backend.Isolation // set by Supports

	driver string
}

// NewPlan checks all engine-independent fields of a Spec. options are the driver's limits.
func NewPlan(driver string, s backend.Spec, images *backend.ImagePolicy, options backend.Limits) (*Plan, error) {
	if err := checkSpec(s); err != nil {
		return nil, fmt.Errorf("%s: %w", driver, err)
	}
	if err := images.Check(s.Image); err != nil {
		return nil, err
	}
	ref, err := backend.NormalizeImage(s.Image)
	if err != nil {
		return nil, err
	}
	user, err := ParseUser(s.User)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", driver, err)
	}
	if s.Building {
		s.Root = backend.RootWritable
	}
	p := &Plan{
		Spec: s, Asked: s.Limits, Ref: ref, Image: shortName(ref), User: user, Root: rootBytesOf(s.Root, s.Limits, options),
		Sized: s.Limits.Merge(options).WorkspaceBytes != 0, driver: driver,
	}
	p.Spec.Limits = s.Limits.Merge(options).Merge(backend.DefaultLimits()).Fit(s.Limits)
	l := p.Spec.Limits
	if l.TmpBytes > l.MemoryBytes/4*3 {
		const what = "tmp_mb must be at most three quarters of memory_mb; raise memory_mb"
		return nil, fmt.Errorf("%s: %s: %w", driver, what, backend.ErrInvalid)
	}
	if most := (l.MemoryBytes - l.TmpBytes) / 4 * 3; l.ShmBytes > most {
		const what = "shm_mb must be at most %d, three quarters of the memory that /tmp leaves; raise memory_mb"
		return nil, fmt.Errorf("%s: "+what+": %w", driver, most/mib, backend.ErrInvalid)
	}
	p.Spec.Network = cmp.Or(s.Network, backend.NetworkNone)
	if s.Created.IsZero() {
		p.Spec.Created = time.Now()
	}
	return p, nil
}

// shortName returns the short form of a full reference, unless engines would take the short form for an image ID.
func shortName(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	if short := reference.FamiliarString(named); !strings.HasPrefix(short, "sha256:") && strings.ContainsAny(short, ":@") {
		return short
	}
	return ref
}

// Supports returns an error if an engine with these capabilities, on a host of this architecture, cannot run the plan.
// It does not check limits, see Enforceable.
func (p *Plan) Supports(caps backend.Capabilities, arch string) error {
	s, driver := p.Spec, p.driver
	p.Isolation = caps.Isolation[s.OCIRuntime]
	switch {
	case s.OCIRuntime != "" && !slices.Contains(caps.OCIRuntimes, s.OCIRuntime):
		return fmt.Errorf("%s: unknown OCI runtime %.40q: %w", driver, s.OCIRuntime, backend.ErrUnsupported)
	case s.Platform != "" && s.Platform != "linux/"+arch:
		return fmt.Errorf("%s: this host runs linux/%s, not %.40q: %w", driver, arch, s.Platform, backend.ErrUnsupported)
	case !p.Isolation.AtLeast(s.Isolation):
		return fmt.Errorf("%s: %w", driver, &backend.IsolationError{Has: p.Isolation, Wants: s.Isolation})
	}
	return nil
}

// ContainerCapabilities returns the common capabilities of container engines. runtimes contains the program or the type
// of each OCI runtime by name. standard is the name of the default runtime. bridge adds bridged networks.
func ContainerCapabilities(runtimes map[string]string, standard string, bridge bool) backend.Capabilities {
	caps := backend.Capabilities{
		Networks: []backend.NetworkMode{backend.NetworkNone}, OCIRuntimes: slices.Sorted(maps.Keys(runtimes)),
		WritableRoot: true, RootEnforcement: backend.WorkspaceWatched, Persistent: true,
		Isolation: map[string]backend.Isolation{},
	}
	for name, program := range runtimes {
		caps.Isolation[name] = backend.RuntimeIsolation(program)
	}
	caps.Isolation[""] = caps.Isolation[standard]
	if bridge {
		caps.Networks = append(caps.Networks, backend.NetworkBridge)
	}
	return caps
}

var sessionIDs = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

var recipes = regexp.MustCompile(`^[0-9a-f]{32,64}$`)

// IsSessionID reports whether s has the form of a session ID.
func IsSessionID(s string) bool { return sessionIDs.MatchString(s) }

// checkSpec returns backend.ErrInvalid or ErrTooLarge if no driver can accept the Spec. It does not check the image,
// runtime, and platform, because the rules for these differ between drivers.
func checkSpec(s backend.Spec) error {
	switch {
	case !IsSessionID(s.ID):
		return fmt.Errorf("session ID %.140q: %w", s.ID, backend.ErrInvalid)
	case s.Root != backend.RootReadonly && s.Root != backend.RootWritable:
		return fmt.Errorf("root mode %d: %w", s.Root, backend.ErrInvalid)
	case s.Network != "" && s.Network != backend.NetworkNone && s.Network != backend.NetworkBridge:
		return fmt.Errorf("network mode %.40q: %w", s.Network, backend.ErrInvalid)
	case s.Pull != "" && s.Pull != backend.PullMissing && s.Pull != backend.PullAlways && s.Pull != backend.PullNever:
		return fmt.Errorf("pull policy %.40q: %w", s.Pull, backend.ErrInvalid)
	case s.Environment != "" && !recipes.MatchString(s.Environment), s.Building && s.Environment == "":
		return fmt.Errorf("environment %.70q is not 32 to 64 hexadecimal digits: %w", s.Environment, backend.ErrInvalid)
	case s.Fork != nil && (!IsSessionID(s.Fork.SessionID) || s.Fork.SessionID == s.ID ||
		backend.CheckSnapshotName(s.Fork.Snapshot) != nil || s.Building):
		return fmt.Errorf("fork of snapshot %.80q: %w", s.Fork.Snapshot, backend.ErrInvalid)
	case s.OrphanTimeout < 0:
		return fmt.Errorf("orphan timeout %v: %w", s.OrphanTimeout, backend.ErrInvalid)
	}
	if err := s.Limits.Validate(); err != nil {
		return err
	}
	if err := checkMounts(s.Mounts); err != nil {
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
		return fmt.Errorf("the labels have %d bytes, the limit is %d: %w", size, maxLabels, backend.ErrTooLarge)
	}
	return nil
}

// User is a numeric user and group.
type User struct{ UID, GID uint32 }

// String returns the user in the format of ParseUser.
func (u User) String() string { return fmt.Sprintf("%d:%d", u.UID, u.GID) }

// ParseUser parses a numeric "uid:gid" or "uid". The empty string means backend.DefaultUser. Names are not accepted,
// because the image's user database is not trusted.
func ParseUser(s string) (User, error) {
	s = cmp.Or(s, backend.DefaultUser)
	u, g, ok := strings.Cut(s, ":")
	if !ok {
		g = u
	}
	uid, err1 := strconv.ParseUint(u, 10, 31)
	gid, err2 := strconv.ParseUint(g, 10, 31)
	if err1 != nil || err2 != nil {
		return User{}, fmt.Errorf("user %.40q must be uid:gid with numbers below 2147483648: %w", s, backend.ErrInvalid)
	}
	return User{UID: uint32(uid), GID: uint32(gid)}, nil
}
