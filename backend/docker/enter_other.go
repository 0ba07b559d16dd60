//go:build !linux

package docker

import (
	"context"
	"io"

	"github.com/docker/docker/api/types/container"
)

// enter returns nil: containers are processes of a virtual machine here.
func enter(context.Context, container.InspectResponse) io.ReadWriteCloser { return nil }
