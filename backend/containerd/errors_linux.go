package containerd

import (
	"errors"
	"io/fs"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/workcell-dev/workcell/backend"
)

// errState means that an object is in the wrong state for a call, perhaps only temporarily.
var errState = errors.New("wrong state")

// native converts an error of containerd's API to a typed error. It does not change other errors.
func native(err error) error {
	if n := errgrpc.ToNative(err); !cerrdefs.IsUnknown(n) {
		return n
	}
	return err
}

// classify returns the sentinel for errors specific to containerd and the host.
func classify(err error) error {
	switch {
	case cerrdefs.IsFailedPrecondition(err):
		return errState
	case errors.Is(err, fs.ErrPermission):
		return backend.ErrPermission
	}
	return nil
}
