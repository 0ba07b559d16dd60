//go:build !linux

package sizedfs

import (
	"context"
	"errors"
	"io"
)

var errSystem = errors.New("only Linux has loop devices")

// Allowed fails.
func Allowed() error { return errSystem }

// Format fails.
func Format(context.Context, string, Spec) error { return errSystem }

// Link fails.
func Link(context.Context, string, string) (io.Closer, error) { return nil, errSystem }
