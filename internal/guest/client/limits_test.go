//go:build linux

package client_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Limits hold from a command's first instruction, however busy the machine is, and programs that are no programs still
// fail as they should.
func TestLimitsHoldFromTheStart(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	limited := func(script string) wire.RunRequest {
		req := sh(script)
		req.OpenFiles, req.FileBytes = 100, 1<<20
		return req
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for range 40 {
				res := mustRun(t, c, limited("ulimit -n; ulimit -Hn; ulimit -f; ulimit -Hf; ulimit -c"))
				if got := string(res.Stdout.Head); res.ExitCode != 0 || strings.ReplaceAll(got, "\n", " ") != "100 100 2048 2048 0 " {
					t.Errorf("%q, %+v", got, res.ExecStatus)
				}
			}
		})
	}
	wg.Wait()
	if res := mustRun(t, c, limited("kill -TRAP $$")); res.Signal != "SIGTRAP" {
		t.Errorf("a trap of the command's own: %+v", res.ExecStatus)
	}
	mustRun(t, c, limited("head -c 2000000 /dev/zero > big"))
	if info, err := c.Stat(testContext(t), wire.PathRequest{Path: "big"}); err != nil || info.Size != 1<<20 {
		t.Errorf("file of %+v, %v", info, err)
	}
	missing := limited("")
	missing.Argv = []string{"/no/such/program"}
	if _, err := c.Run(testContext(t), missing); launchOf(err) != "not_found" {
		t.Errorf("a missing program: %v", err)
	}
}
