//go:build !linux

package netguard

import "errors"

// Apply is for Linux, where sandboxes run.
func Apply(Rules) error { return errors.ErrUnsupported }
