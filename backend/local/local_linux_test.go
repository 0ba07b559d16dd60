package local_test

import (
	"testing"

	"github.com/workcell-dev/workcell/backend"
)

func TestWritableRoot(t *testing.T) {
	t.Parallel()
	b := newBackend(t, stateDir(t))
	if !b.Capabilities().WritableRoot {
		t.Fatal("a writable root cannot be made here")
	}
	spec := newSpec()
	spec.User, spec.Root = "0:0", backend.RootWritable
	conn := dial(t, b, create(t, b, spec).ID)
	if got := sh(t, conn, "touch /x /etc/x /usr/x /usr/bin/x /usr/local/bin/x && rm /usr/bin/env && umask"); got != "0022\n" {
		t.Errorf("umask %q", got)
	}
	if got := sh(t, dial(t, b, create(t, b, newSpec()).ID), "test -x /usr/bin/env && echo whole"); got != "whole\n" {
		t.Errorf("another sandbox: %q", got)
	}
}
