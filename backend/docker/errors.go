package docker

import (
	"errors"
	"io"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
)

// classify returns the sentinel for errors specific to this engine's client.
func classify(err error) error {
	switch {
	case client.IsErrConnectionFailed(err), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return backend.ErrUnavailable
	case cerrdefs.IsConflict(err):
		return backend.ErrExists
	}
	return nil
}
