//go:build !linux

package cache

import "errors"

func exchange(string, string) error { return errors.ErrUnsupported }
