//go:build !linux

package main

import (
	"errors"
	"os"
)

// openUnnamed is for systems that have files without a name.
func openUnnamed(*os.Root, string) (*os.File, error) { return nil, errors.ErrUnsupported }

func linkUnnamed(*os.Root, *os.File, string) error { return errors.ErrUnsupported }
