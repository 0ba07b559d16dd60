package containerd

import (
	"context"
	"errors"
	"io/fs"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/workcell-dev/workcell/backend"
)

// errState is the kind of failure where something is in another state than a call needs, perhaps only for now.
var errState = errors.New("wrong state")

// settle returns the error of something that is not a call of containerd's: the end of ctx where that is the reason.
func (b *driver) settle(ctx context.Context, what string, err error) error {
	if err != nil && ctx.Err() != nil {
		return b.calls.Fail(ctx, what, ctx.Err())
	}
	return err
}

// native turns what a raw call of containerd's API returns into an error with a type, and leaves others as they are.
func native(err error) error {
	if n := errgrpc.ToNative(err); !cerrdefs.IsUnknown(n) {
		return n
	}
	return err
}

// classify returns the sentinel for what only containerd and its machine report.
func classify(err error) error {
	switch {
	case cerrdefs.IsFailedPrecondition(err):
		return errState
	case errors.Is(err, fs.ErrPermission):
		return backend.ErrPermission
	}
	return nil
}
