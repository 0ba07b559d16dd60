//go:build !linux

package transfer

import (
	"errors"
	"os"
)

// openTemp is for systems that have files without a name.
func openTemp(*os.Root, string) (*os.File, error) { return nil, errors.ErrUnsupported }

func linkTemp(*os.Root, *os.File, string) error { return errors.ErrUnsupported }
