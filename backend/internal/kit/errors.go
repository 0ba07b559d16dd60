package kit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
)

// Error describes a failure reported by an engine or the host. The text is safe to show to agents because it contains
// no host paths.
type Error struct {
	Driver string
	What   string // the failed request
	Kind   error  // sentinel error; nil if none fits
	Detail string // the engine's error text without paths; may be empty
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

// Error returns an error for a failure detected by the driver, in the form of the engine's failures.
func (c *Calls) Error(what string, kind error, detail string) error {
	return &Error{Driver: c.o.Name, What: what, Kind: kind, Detail: detail}
}

// Fail converts an error of the engine's client or of the host to an error of package backend. ctx is the caller's
// context, not the context of the single call. If ctx has ended, Fail returns the error of ctx. Only the log gets the
// full text.
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
	if !errors.Is(e.Kind, backend.ErrUnavailable) { // the text would only repeat the socket's name
		e.Detail = Scrub(err.Error())
	}
	return e
}

// Settle returns err, or the error of ctx if ctx has ended. It is for operations other than calls to the engine.
func (c *Calls) Settle(ctx context.Context, what string, err error) error {
	if err != nil && ctx.Err() != nil {
		return c.Fail(ctx, what, ctx.Err())
	}
	return err
}

// ended returns the reason why ctx ended, or nil if ctx has not ended. It compares the deadline with the clock, because
// an engine or the client may notice the deadline first and return a different error text.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// Ignore returns nil if err matches one of these errors.
func Ignore(err error, kinds ...error) error { return host.Ignore(err, kinds...) }

// Unexplained reports whether an engine failed without a known class of failure.
func Unexplained(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Kind == nil
}

// Classify returns the sentinel error for an error, based only on the error's type. If no sentinel fits, it returns
// nil. If own returns a sentinel, so does Classify.
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
	return ok || host.IsAny(err, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE)
}

// maxDetail is the maximum length of an engine's text in an error.
const maxDetail = 300

// Scrub removes paths and socket addresses of the host from an engine's text, and truncates the text.
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
	// sockets matches the address of an engine, including an address in the URL of a call.
	sockets = regexp.MustCompile(`\b(?:unix|npipe|fd)://[^\s"'):,]*|\bhttps?://[^\s"',]*/(?:v1\.[0-9]+/|_ping)[^\s"',]*`)
	// users matches the part of a URL before the host, which may contain a password.
	users = regexp.MustCompile(`://[^/@\s"']*@`)
	// hostPaths matches absolute paths. It does not match a slash after a name, for example in an image reference, or the
	// path of a URL.
	hostPaths = regexp.MustCompile(`(^|[\s"'(=\[,]|: ?)(?:/[A-Za-z0-9_.@+-]+)+/?`)
)
