package docker

import (
	"errors"
	"fmt"
	"io"
	"regexp"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
)

// wrongVersion matches the refusal of the API version, for example after an upgrade of the engine. The client only
// negotiates the version at its start.
var wrongVersion = regexp.MustCompile(`client version [0-9.]+ is too (old|new)\.`)

var errVersion = fmt.Errorf("the engine's version changed, restart Workcell: %w", backend.ErrUnavailable)

// classify returns the sentinel for errors specific to this engine's client.
func classify(err error) error {
	switch {
	case client.IsErrConnectionFailed(err), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return backend.ErrUnavailable
	case cerrdefs.IsInvalidArgument(err) && wrongVersion.MatchString(err.Error()):
		return errVersion
	case cerrdefs.IsConflict(err):
		return backend.ErrExists
	}
	return nil
}
