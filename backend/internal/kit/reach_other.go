//go:build !linux

package kit

import (
	"context"
	"io"
)

// ReachGuest returns ErrElsewhere because containers run in a virtual machine on this operating system.
func ReachGuest(context.Context, string, int, func(context.Context) (int, error)) (io.ReadWriteCloser, error) {
	return nil, ErrElsewhere
}
