package client_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Limits hold from a command's first instruction, however busy the machine is, and programs that are no programs still
// fail as they should.
func TestLimitsHoldFromTheStart(t *testing.T) {
	t.Parallel()
	conn, err := client.New(t.Context(), guesttest.Start(t, nil).Dial(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	run := func(id string, argv ...string) (wire.RunResult, error) {
		return conn.Run(t.Context(), wire.RunRequest{
			Spawn:  wire.Spawn{Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}, OpenFiles: 100, FileBytes: 1 << 20, TimeoutMillis: 60_000},
			ExecID: id, YieldMillis: -1, HeadBytes: 4096,
		})
	}
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			for i := range 40 {
				res, err := run(fmt.Sprintf("limits-%d-%d", worker, i), "/bin/sh", "-c", "ulimit -n; ulimit -Hn; ulimit -f; ulimit -Hf")
				if got := string(res.Stdout.Head); err != nil || res.ExitCode != 0 || strings.ReplaceAll(got, "\n", " ") != "100 100 2048 2048 " {
					t.Errorf("%q, %+v, %v", got, res.ExecStatus, err)
				}
			}
		})
	}
	wg.Wait()
	if res, err := run("signal", "/bin/sh", "-c", "kill -TRAP $$"); err != nil || res.Signal != "SIGTRAP" {
		t.Errorf("a trap of the command's own: %+v, %v", res.ExecStatus, err)
	}
	if _, err := run("missing", "/no/such/program"); err == nil {
		t.Error("a missing program runs")
	}
}
