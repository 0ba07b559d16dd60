package kit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/workcell-dev/workcell/backend"
)

// Error is a failure that an engine, or its machine, reported. Its text is fit for agents: it holds no path of the
// machine.
type Error struct {
	Driver string
	What   string // was asked for
	Kind   error  // sentinel, nil when none fits
	Detail string // the engine's words, scrubbed; may be empty
}

// Error returns one line.
func (e *Error) Error() string {
	s := e.Driver + ": " + e.What
	if e.Kind != nil {
		s += ": " + e.Kind.Error()
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Kind }

// Error returns a failure that the driver finds out, in the form of the engine's own.
func (c *Calls) Error(what string, kind error, detail string) error {
	return &Error{Driver: c.o.Name, What: what, Kind: kind, Detail: detail}
}

// Fail turns an error of the engine's client, or of the machine, into one of package backend. ctx is the caller's, not
// that of the single call: when it ended, its error is what the caller gets to see. The full text goes to the log only.
func (c *Calls) Fail(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if _, done := errors.AsType[*Error](err); done {
		return err
	}
	if errors.Is(context.Cause(ctx), backend.ErrClosed) {
		return fmt.Errorf("%s: %s: %w", c.o.Name, what, backend.ErrClosed)
	}
	if c.o.Native != nil {
		err = c.o.Native(err)
	}
	if end := ended(ctx); end != nil {
		return fmt.Errorf("%s: %s: %w", c.o.Name, what, end)
	}
	c.o.Log.Debug(c.o.Name+": call failed", "call", what, "error", users.ReplaceAllString(err.Error(), "://"))
	e := &Error{Driver: c.o.Name, What: what, Kind: Classify(err, c.o.Classify)}
	if !errors.Is(e.Kind, backend.ErrUnavailable) { // whose text names the socket and says nothing more
		e.Detail = Scrub(err.Error())
	}
	return e
}

// ended returns the reason for which ctx ended, nil when it has not. An engine and its client know the deadline and may
// see it pass before this process does, and say so in words of their own.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// IsAny reports whether an error is one of these kinds.
func IsAny(err error, kinds ...error) bool {
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}

// Ignore returns nil for an error of one of these kinds.
func Ignore(err error, kinds ...error) error {
	if IsAny(err, kinds...) {
		return nil
	}
	return err
}

// Unexplained reports whether an engine failed and said no class of failure.
func Unexplained(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Kind == nil
}

// classed adds a class to an engine's failure without one, such as a full disk or a missing runtime: the same request
// may succeed later.
func classed(err error) error {
	if !Unexplained(err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, backend.ErrUnavailable)
}

// Classify returns the sentinel for an error, by type alone; nil when none fits. What own returns goes first, unless it
// is nil.
func Classify(err error, own func(error) error) error {
	if own != nil {
		if kind := own(err); kind != nil {
			return kind
		}
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return backend.ErrNoRoom
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, ErrSilent),
		cerrdefs.IsUnavailable(err), isNetwork(err):
		return backend.ErrUnavailable
	case cerrdefs.IsNotFound(err):
		return backend.ErrNotFound
	case cerrdefs.IsAlreadyExists(err):
		return backend.ErrExists
	case cerrdefs.IsInvalidArgument(err):
		return backend.ErrInvalid
	case cerrdefs.IsUnauthorized(err), cerrdefs.IsPermissionDenied(err):
		return backend.ErrPermission
	case cerrdefs.IsNotImplemented(err):
		return backend.ErrUnsupported
	}
	return nil
}

func isNetwork(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok || IsAny(err, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE)
}

// maxDetail is the longest text of an engine that goes into an error.
const maxDetail = 300

// Scrub takes paths and socket addresses of the engine's machine out of its words, and bounds them.
func Scrub(s string) string {
	s = strings.TrimPrefix(s, "Error response from daemon: ")
	s = strings.TrimPrefix(s, "rpc error: code = Unknown desc = ")
	s = sockets.ReplaceAllString(s, "<engine>")
	s = users.ReplaceAllString(s, "://")
	s = hostPaths.ReplaceAllString(s, "$1<path>")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if len(s) > maxDetail {
		s = strings.ToValidUTF8(s[:maxDetail], "") + "…"
	}
	return s
}

var (
	// sockets finds the address of an engine, also in the URL of a call.
	sockets = regexp.MustCompile(`\b(?:unix|npipe|fd)://[^\s"'):,]*|\bhttps?://[^\s"',]*/(?:v1\.[0-9]+/|_ping)[^\s"',]*`)
	// users finds what stands before the host of an address, perhaps a password.
	users = regexp.MustCompile(`://[^/@\s"']*@`)
	// hostPaths finds absolute paths; the slash after a name, as in an image's, begins none, nor do those of an URL.
	hostPaths = regexp.MustCompile(`(^|[\s"'(=\[,]|: ?)(?:/[A-Za-z0-9_.@+-]+)+/?`)
)
