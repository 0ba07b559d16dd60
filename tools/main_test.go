package tools_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

// guestEnv is the variable for the guest agent's file, shared by all tests of this process.
const guestEnv = "WORKCELL_TEST_GUEST_BINARY"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "workcell-tools-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) // a failure leaves only temporary files
	guest, err := embed.Binary(runtime.GOARCH)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "guest"), guest, 0o755)
	}
	if err == nil {
		err = os.Setenv(guestEnv, filepath.Join(dir, "guest"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	idle := localOnly()
	code := m.Run()
	if code == 0 {
		idle()
		err := leaktest.Find(
			// Genkit never stops listening for signals.
			goleak.IgnoreTopFunction("os/signal.signal_recv"), goleak.IgnoreTopFunction("os/signal.loop"),
			// Left behind by an unreadable template.
			goleak.IgnoreTopFunction("github.com/mbleigh/raymond/lexer.(*Lexer).produce"),
		)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}
