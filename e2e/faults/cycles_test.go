//go:build linux

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// cyclesVariable turns the test binary into a program that opens, uses, and closes sandboxes and counts its own
// resources. This is impossible in a process that runs other tests. The value contains an engine, a number, and a state
// directory.
const cyclesVariable = "FAULTS_CYCLES"

// usage is the resource usage of a process.
type usage struct {
	Files      int // open descriptors
	Goroutines int
	Heap       uint64 // bytes in use after a collection
}

// cycled is the report of a process with cycles.
type cycled struct {
	Lost         []string // failed cycles
	Before, Then usage    // maximum between warmUp and half of the cycles; usage after all cycles
	IDs          []string // sandbox ids on the engines
}

// someHeap is the allowed growth of the heap, because the ids of closed sandboxes are remembered for an hour.
const someHeap = 4 << 20

// someMore is the allowed number of additional descriptors and goroutines. A leak in every cycle exceeds it.
const someMore = 5

// warmUp is the number of cycles after which a process has allocated all permanent resources.
const warmUp = 10

// TestCycles opens, uses, and closes sandboxes in a separate process. At the end, the process must not use more
// resources than in the beginning, and no traces of the sandboxes must be left on the host.
func TestCycles(t *testing.T) {
	n := 30
	if soaking() {
		n = 1000
	}
	on(t, engines(), func(t *testing.T, h *host) {
		f := faultOf("open-exec-close cycle", h.engine)
		h.named(t)
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", cyclesVariable, h.engine, n, h.State))
		out, err := rig.Output(cmd)
		must(t, err)
		var c cycled
		must(t, json.Unmarshal([]byte(out), &c))
		f.inject(n)
		for _, what := range c.Lost {
			f.lose(t, "%s", what)
		}
		f.leave(t, grown(c.Before, c.Then))
		h.nothingLeft(t)
		var left []string
		eventually(t, "no traces of the sandboxes remain", func() bool { left = traces(c.IDs); return len(left) == 0 })
		t.Logf("%d cycles: %+v, then %+v", n, c.Before, c.Then)
	})
}

// most returns the maximum of each field.
func (u usage) most(v usage) usage {
	return usage{Files: max(u.Files, v.Files), Goroutines: max(u.Goroutines, v.Goroutines), Heap: max(u.Heap, v.Heap)}
}

// grown returns the resources of which a process uses more than at any time in the first half of its cycles.
func grown(before, then usage) []string {
	var more []string
	if then.Files > before.Files+someMore {
		more = append(more, fmt.Sprintf("%d file descriptors, there were %d", then.Files, before.Files))
	}
	if then.Goroutines > before.Goroutines+someMore {
		more = append(more, fmt.Sprintf("%d goroutines, there were %d", then.Goroutines, before.Goroutines))
	}
	if then.Heap > before.Heap+someHeap {
		more = append(more, fmt.Sprintf("%d bytes of heap, there were %d", then.Heap, before.Heap))
	}
	return more
}

// traces finds processes, control groups, and mounts with the id of a sandbox, for example shims.
func traces(ids []string) []string {
	var found []string
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the patterns are valid
	groups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range append(append(commands, groups...), "/proc/self/mountinfo") {
		text, _ := os.ReadFile(file) // it may have exited
		for _, id := range ids {
			if bytes.Contains(text, []byte(id)) {
				found = append(found, file+" names "+id)
			}
		}
	}
	return found
}

// runCycles is the main function of the program.
func runCycles(args string) error {
	f := strings.Fields(args)
	n, err := strconv.Atoi(f[1])
	if err != nil {
		return err
	}
	ctx := context.Background()
	driver, err := connect(ctx, f[0])
	if err != nil {
		return err
	}
	l, err := openLibrary(ctx, driver, f[2])
	if err != nil {
		return err
	}
	var c cycled
	for i := range n {
		if i >= warmUp && i < n/2 {
			c.Before = c.Before.most(held())
		}
		ids, err := cycle(ctx, l, i)
		if err != nil {
			c.Lost = append(c.Lost, fmt.Sprintf("cycle %d: %v", i, err))
		}
		c.IDs = append(c.IDs, ids...)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		// Resources about to be freed do not count.
		if c.Then = held(); len(grown(c.Before, c.Then)) == 0 || time.Now().After(deadline) {
			break
		}
	}
	return errors.Join(json.NewEncoder(os.Stdout).Encode(c), l.close(ctx))
}

// cycle opens a sandbox, runs a command in it, and closes it.
func cycle(ctx context.Context, l *library, i int) (ids []string, err error) {
	key := session.WorkflowKey(session.NewRunID(), record.DefaultName)
	s, created, err := l.Open(ctx, key, session.Request{Image: image})
	if err != nil {
		return nil, err
	}
	ids = []string{s.ID(), s.Info().EngineID}
	if _, creation, ok := strings.Cut(s.Info().EngineID, "."); ok { // the part in containerd's own names
		ids = append(ids, creation)
	}
	res, err := s.Exec(ctx, sandbox.ExecRequest{Command: "echo $WORD > file; cat file", Env: map[string]string{"WORD": strconv.Itoa(i)}})
	if err == nil && (string(res.Stdout.Bytes()) != fmt.Sprintln(i) || !created) {
		err = fmt.Errorf("the file holds %q, created is %v", res.Stdout.Bytes(), created)
	}
	return ids, errors.Join(err, l.CloseScope(ctx, key.Scope()))
}

// held returns the resource usage of this process.
func held() usage {
	runtime.GC()
	runtime.GC() // pools free their contents at the second collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	links, _ := filepath.Glob("/proc/self/fd/*") // the pattern is valid
	links = slices.DeleteFunc(links, func(link string) bool {
		file, _ := os.Readlink(link)                               // the descriptor of the list itself is closed
		return strings.Contains(filepath.Base(file), "library.db") // a connection pool grows to the maximum concurrent use
	})
	return usage{Files: len(links), Goroutines: runtime.NumGoroutine(), Heap: m.HeapAlloc}
}
