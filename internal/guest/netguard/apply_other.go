//go:build !linux

package netguard

import "errors"

// Apply is only available on Linux, where sandboxes run.
func Apply(Rules) error { return errors.ErrUnsupported }
