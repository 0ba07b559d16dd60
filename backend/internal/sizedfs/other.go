//go:build !linux

package sizedfs

import (
	"context"
	"errors"
	"io"
)

var errSystem = errors.New("only Linux has loop devices")

// Allowed tells that nothing of this can be had here.
func Allowed() error { return errSystem }

// Maker makes nothing.
type Maker struct{}

// Format fails.
func (*Maker) Format(context.Context, string, Spec) error { return errSystem }

// Link fails.
func Link(context.Context, string, string) (io.Closer, error) { return nil, errSystem }

// Reserved fails.
func Reserved(string) (bool, error) { return false, errSystem }
