package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
)

var errClosed = fmt.Errorf("docker backend: %w", backend.ErrClosed)

// engineError is a failure that the engine reported. Its text is fit for agents: no path of the engine's machine.
type engineError struct {
	what   string
	kind   error  // sentinel, nil when none fits
	detail string // the engine's words, scrubbed; may be empty
}

func (e *engineError) Error() string {
	s := "docker: " + e.what
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

// fail turns an error of the engine's client into one of package backend. ctx is the caller's, not that of the single
// call: when it ended, its error is what the caller gets to see. The engine's full text goes to the log only.
func (b *Backend) fail(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	var done *engineError
	if errors.As(err, &done) {
		return err
	}
	if ctx.Err() != nil {
		if errors.Is(context.Cause(ctx), backend.ErrClosed) {
			return fmt.Errorf("docker: %s: %w", what, backend.ErrClosed)
		}
		return fmt.Errorf("docker: %s: %w", what, ctx.Err())
	}
	b.log.Debug("docker: call failed", "call", what, "error", users.ReplaceAllString(err.Error(), "://"))
	kind := classify(err)
	e := &engineError{what: what, kind: kind}
	if !errors.Is(kind, backend.ErrUnavailable) { // whose text names the socket and says nothing more
		e.detail = scrub(err.Error())
	}
	return e
}

// unexplained tells that the engine failed and gave no class of failure.
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

// classify finds the sentinel for an error of the engine's client, by type alone.
func classify(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, errSilent),
		client.IsErrConnectionFailed(err), isNetwork(err), cerrdefs.IsUnavailable(err):
		return backend.ErrUnavailable
	case cerrdefs.IsNotFound(err):
		return backend.ErrNotFound
	case cerrdefs.IsConflict(err), cerrdefs.IsAlreadyExists(err):
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
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// maxDetail is the longest text of an engine that goes into an error.
const maxDetail = 300

// scrub takes paths and socket addresses of the engine's machine out of its words, and bounds them.
func scrub(s string) string {
	s = strings.TrimPrefix(s, "Error response from daemon: ")
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
