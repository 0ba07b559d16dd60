//go:build !unix

package backendtest

import (
	"errors"
	"testing"
)

func freeze(testing.TB, string) error { return errors.ErrUnsupported }
