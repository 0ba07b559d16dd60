//go:build linux

package session_test

import (
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

// guestEnv makes the test binary run as a guest. The variable's value is the working directory, and descriptor 3 is the
// listening socket.
const guestEnv = "WORKCELL_TEST_GUEST_WORKDIR"

func TestMain(m *testing.M) {
	if workdir := os.Getenv(guestEnv); workdir != "" {
		if err := serveGuest(workdir); err != nil {
			fmt.Fprintln(os.Stderr, "test guest:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// serveGuest serves as a guest until its input is closed.
func serveGuest(workdir string) error {
	guest, err := server.New(server.Config{Workdir: workdir, Log: os.Stderr})
	if err != nil {
		return err
	}
	go func() { _ = guest.ServeListener(os.NewFile(3, "listener")) }() // until the process exits
	_, _ = io.Copy(io.Discard, os.Stdin)                               // any error ends the guest too
	return guest.Close()
}
