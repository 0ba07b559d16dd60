//go:build linux

package client_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestContainerScratchIsMemory verifies that a file in /tmp is refused if it does not fit in memory. To make room for
// such a file, the kernel would have to kill the guest agent.
func TestContainerScratchIsMemory(t *testing.T) {
	t.Parallel()
	sandbox, c := startSandbox(t, guesttest.ContainerOptions{Docker: []string{"--memory", "64m", "--memory-swap", "64m", "--shm-size", "40m"}})
	mustRun(t, c, sh("head -c 100000000 /dev/zero > /dev/shm/x"))
	data := noise(40 << 20)
	for _, size := range []int64{int64(len(data)), -1} {
		_, err := c.PutFile(testContext(t), wire.FilePutRequest{Path: "/tmp/f", Size: size}, bytes.NewReader(data))
		if codeOf(err) != wire.CodeQuota {
			t.Errorf("a file of %d bytes: %v", size, err)
		}
	}
	alive(t, sandbox, c)
	mustRun(t, c, sh("rm /dev/shm/x"))
	if info, err := put(t, c, "/tmp/f", data); err != nil || info.Path != "/tmp/f" {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestContainerMemoryIsFlat(t *testing.T) {
	t.Parallel()
	sandbox, c := startSandbox(t, guesttest.ContainerOptions{})
	rss := func() (kib int64) {
		t.Helper()
		text := string(mustRun(t, c, sh("grep VmRSS /proc/1/status")).Stdout.Head)
		if _, err := fmt.Sscanf(text, "VmRSS: %d kB", &kib); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return kib
	}
	t.Logf("at rest %d KiB", rss())
	for range 2000 {
		mustRun(t, c, wire.RunRequest{ExecID: newID(), YieldMillis: -1, HeadBytes: 4096, Spawn: wire.Spawn{Argv: []string{"/bin/echo", "hello"}}})
	}
	after := rss()
	t.Logf("after 2,000 commands %d KiB", after)
	if after > 12<<10 {
		t.Errorf("%d KiB after 2,000 commands", after)
	}
	data := noise(100 << 20)
	mustPut(t, c, "f", data)
	t.Logf("after a file of 100 MiB came %d KiB", rss())
	must(t, second(get(t, c, "f")))
	t.Logf("after it went back %d KiB", rss())
	yes := sh("exec yes")
	yes.TimeoutMillis, yes.Spill = 3000, true
	res := mustRun(t, c, yes)
	t.Logf("after %d MB of yes %d KiB", res.Stdout.Total/1e6, rss())
	mustRun(t, c, sh("head -c 100000000 /dev/zero; i=0; while [ $i -lt 20000 ]; do echo; i=$((i+1)); done"))
	if after = rss(); after > 16<<10 {
		t.Errorf("%d KiB at the end", after)
	}
	alive(t, sandbox, c)
}
