//go:build linux

package client_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestLimitsHoldFromTheStart verifies that limits apply from a command's first instruction, even on a busy host, and
// invalid programs fail with the right error.
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
		t.Errorf("a SIGTRAP sent by the command: %+v", res.ExecStatus)
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

// TestPassedLimitIsCut verifies that a command over the workspace's monitored limit is killed, the result names the
// truncated file, and other files are unchanged.
func TestPassedLimitIsCut(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "cut") // deleted files held open by other processes do not count there
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	const limit = 4 << 20
	c := dial(t, guesttest.Start(t, &guesttest.Options{Binary: binary, Workdir: dir,
		Args: []string{"--workspace-bytes", fmt.Sprint(limit), "--workspace-watched=true"}}))
	mustRun(t, c, sh("head -c 1000000 /dev/zero > old"))
	res := mustRun(t, c, sh("head -c 40000000 /dev/zero > 'big one'; sleep 60"))
	if said := string(res.Stderr.Head); res.State != wire.ExecQuotaKilled || !strings.Contains(said, `truncated: "big one"]`) {
		t.Errorf("%q, %+v", said, res.ExecStatus)
	}
	for name, most := range map[string]int64{"old": 1000000, "big one": limit - 1000000 + 64<<10} {
		if info, err := c.Stat(testContext(t), wire.PathRequest{Path: name}); err != nil || info.Size > most || info.Size < most-128<<10 {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
}
