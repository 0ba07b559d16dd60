package docker

import (
	"errors"
	"io"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// engineError is a failure that is found out here, in the words of the engine's own.
func engineError(what string, kind error, detail string) error {
	return &kit.Error{Driver: "docker", What: what, Kind: kind, Detail: detail}
}

// classify returns the sentinel for what only this engine's client reports.
func classify(err error) error {
	switch {
	case client.IsErrConnectionFailed(err), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return backend.ErrUnavailable
	case cerrdefs.IsConflict(err):
		return backend.ErrExists
	}
	return nil
}
