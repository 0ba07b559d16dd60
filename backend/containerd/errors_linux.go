package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/workcell-dev/workcell/backend"
)

var (
	errClosed = fmt.Errorf("containerd backend: %w", backend.ErrClosed)
	// errState is the kind of failure where something is in another state than a call needs, perhaps only for now.
	errState = errors.New("in another state")
)

// engineError is a failure that containerd or this machine reported. Its text is fit for agents: no path of the machine.
type engineError struct {
	what   string
	kind   error  // sentinel, nil when none fits
	detail string // the engine's words, scrubbed; may be empty
}

func (e *engineError) Error() string {
	s := "containerd: " + e.what
	if e.kind != nil {
		s += ": " + e.kind.Error()
	}
	if e.detail != "" {
		s += ": " + e.detail
	}
	return s
}

// Unwrap gives the sentinel.
func (e *engineError) Unwrap() error { return e.kind }

// fail turns an error of containerd's client, or of the machine, into one of package backend. ctx is the caller's, not
// that of the single call: when it ended, its error is what the caller gets to see. The full text goes to the log only.
func (b *Backend) fail(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	var done *engineError
	if errors.As(err, &done) {
		return err
	}
	if errors.Is(context.Cause(ctx), backend.ErrClosed) {
		return fmt.Errorf("containerd: %s: %w", what, backend.ErrClosed)
	}
	err = native(err)
	if end := ended(ctx, err); end != nil {
		return fmt.Errorf("containerd: %s: %w", what, end)
	}
	b.log.Debug("containerd: call failed", "call", what, "error", users.ReplaceAllString(err.Error(), "://"))
	kind := classify(err)
	e := &engineError{what: what, kind: kind}
	if !errors.Is(kind, backend.ErrUnavailable) { // whose text names the socket and says nothing more
		e.detail = scrub(err.Error())
	}
	return e
}

// ended gives the reason for which ctx ended, nil when it goes on. containerd is told of a deadline and may see it pass
// before this process does.
func ended(ctx context.Context, err error) error {
	if deadline, ok := ctx.Deadline(); ok && errors.Is(err, context.DeadlineExceeded) && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// settle gives the error of something that is not a call of containerd's: the end of ctx where that is the reason.
func (b *Backend) settle(ctx context.Context, what string, err error) error {
	if err != nil && ctx.Err() != nil {
		return b.fail(ctx, what, ctx.Err())
	}
	return err
}

// unexplained tells that containerd failed and gave no class of failure.
func unexplained(err error) bool {
	var e *engineError
	return errors.As(err, &e) && e.kind == nil
}

// classed gives a failure of the engine that it did not explain, such as a full disk or a runtime that is gone, the class
// of those that may pass without a change of the request.
func classed(err error) error {
	if !unexplained(err) {
		return err
	}
	return fmt.Errorf("%w: %w", err, backend.ErrUnavailable)
}

// native turns what a raw call of containerd's API gives into an error with a type, and leaves others as they are.
func native(err error) error {
	if n := errgrpc.ToNative(err); !cerrdefs.IsUnknown(n) {
		return n
	}
	return err
}

// classify finds the sentinel for an error, by type alone.
func classify(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return backend.ErrNoRoom
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, errSilent),
		cerrdefs.IsUnavailable(err), isNetwork(err):
		return backend.ErrUnavailable
	case cerrdefs.IsNotFound(err):
		return backend.ErrNotFound
	case cerrdefs.IsAlreadyExists(err):
		return backend.ErrExists
	case cerrdefs.IsInvalidArgument(err):
		return backend.ErrInvalid
	case cerrdefs.IsUnauthorized(err), cerrdefs.IsPermissionDenied(err), errors.Is(err, fs.ErrPermission):
		return backend.ErrPermission
	case cerrdefs.IsFailedPrecondition(err):
		return errState
	case cerrdefs.IsNotImplemented(err):
		return backend.ErrUnsupported
	}
	return nil
}

func isNetwork(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// maxDetail is the longest text of an engine that goes into an error.
const maxDetail = 300

// scrub takes paths and socket addresses of the machine out of an error's words, and bounds them.
func scrub(s string) string {
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
	// sockets finds the address of an engine.
	sockets = regexp.MustCompile(`\b(?:unix|npipe|fd)://[^\s"'):,]*`)
	// users finds what stands before the host of an address, perhaps a password.
	users = regexp.MustCompile(`://[^/@\s"']*@`)
	// hostPaths finds absolute paths; the slash after a name, as in an image's, begins none, nor do those of an URL.
	hostPaths = regexp.MustCompile(`(^|[\s"'(=\[,]|: ?)(?:/[A-Za-z0-9_.@+-]+)+/?`)
)
