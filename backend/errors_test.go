package backend_test

import (
	"errors"
	"testing"

	"github.com/workcell-dev/workcell/backend"
)

// TestErrorNamesTheSandboxOrTheDriver verifies that the text of an error begins with the sandbox or the driver, and
// repeats neither.
func TestErrorNamesTheSandboxOrTheDriver(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]backend.Error{
		"docker: no room":          {Err: errors.New("no room")},
		"docker: create: no room":  {Err: errors.New("docker: create: no room")},
		"sandbox sbx_1: not there": {ID: "sbx_1", Err: errors.New("not there")},
		"sandbox sbx_1: create":    {ID: "sbx_1", Err: errors.New("docker: create")},
	} {
		if e.Op, e.Backend = "Open", "docker"; e.Error() != want {
			t.Errorf("%q, want %q", e.Error(), want)
		}
	}
}
