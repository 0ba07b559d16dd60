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

// cyclesVariable turns the test binary into a program that opens, uses and closes sandboxes and counts what it holds:
// beside other tests in one process that could not be told. Its value is an engine, a number and a state directory.
const cyclesVariable = "FAULTS_CYCLES"

// usage is what a process holds.
type usage struct {
	Files      int    // open descriptors
	Goroutines int    //
	Heap       uint64 // bytes in use after a collection
}

// cycled is what a process of cycles reports.
type cycled struct {
	Lost         []string // cycles that went wrong
	Before, Then usage    // the most between warmUp and half of the cycles, after all
	IDs          []string // by which engines know the sandboxes
}

// someHeap is how much the heap may grow: a closed sandbox's id is remembered for an hour.
const someHeap = 4 << 20

// someMore is how many more descriptors and goroutines there may be. What every cycle leaves is more than that.
const someMore = 5

// warmUp is the number of cycles after which a process has all that it needs.
const warmUp = 10

// TestCycles opens, uses and closes sandboxes in a process that must need no more in the end than it did in the
// beginning, and looks for what is left of them on the machine.
func TestCycles(t *testing.T) {
	n := 30
	if soaking() {
		n = 1000
	}
	on(t, engines(), func(t *testing.T, h *host) {
		f := faultOf("open-exec-close cycle", h.engine)
		h.named(t)
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", cyclesVariable, h.engine, n, h.state))
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
		eventually(t, "nothing names the sandboxes any more", func() bool { left = traces(c.IDs); return len(left) == 0 })
		t.Logf("%d cycles: %+v, then %+v", n, c.Before, c.Then)
	})
}

// most returns the larger of each.
func (u usage) most(v usage) usage {
	return usage{Files: max(u.Files, v.Files), Goroutines: max(u.Goroutines, v.Goroutines), Heap: max(u.Heap, v.Heap)}
}

// grown names what a process holds more of than it did at any time in the first half of its cycles.
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

// traces finds processes, their control groups and mounts that name a sandbox, such as shims.
func traces(ids []string) []string {
	var found []string
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the patterns are well-formed
	groups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range append(append(commands, groups...), "/proc/self/mountinfo") {
		text, _ := os.ReadFile(file) // it may have ended
		for _, id := range ids {
			if bytes.Contains(text, []byte(id)) {
				found = append(found, file+" names "+id)
			}
		}
	}
	return found
}

// runCycles is the program.
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
		// What is about to end is not held.
		if c.Then = held(); len(grown(c.Before, c.Then)) == 0 || time.Now().After(deadline) {
			break
		}
	}
	return errors.Join(json.NewEncoder(os.Stdout).Encode(c), l.close(ctx))
}

// cycle opens a sandbox, has it do something, and closes it.
func cycle(ctx context.Context, l *library, i int) (ids []string, err error) {
	key := session.WorkflowKey(session.NewRunID(), record.DefaultName)
	s, created, err := l.Open(ctx, key, session.Request{Image: image})
	if err != nil {
		return nil, err
	}
	ids = []string{s.ID(), s.Info().EngineID}
	if _, creation, ok := strings.Cut(s.Info().EngineID, "."); ok { // what containerd's own names have of it
		ids = append(ids, creation)
	}
	res, err := s.Exec(ctx, sandbox.ExecRequest{Command: "echo $WORD > file; cat file", Env: map[string]string{"WORD": strconv.Itoa(i)}})
	if err == nil && (string(res.Stdout.Bytes()) != fmt.Sprintln(i) || !created) {
		err = fmt.Errorf("the file holds %q, created is %v", res.Stdout.Bytes(), created)
	}
	return ids, errors.Join(err, l.CloseScope(ctx, key.Scope()))
}

// held counts what this process holds.
func held() usage {
	runtime.GC()
	runtime.GC() // what pools keep goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	links, _ := filepath.Glob("/proc/self/fd/*") // the pattern is well-formed
	links = slices.DeleteFunc(links, func(link string) bool {
		file, _ := os.Readlink(link)                               // the list's own is gone
		return strings.Contains(filepath.Base(file), "library.db") // a pool, which grows to as many as are used at once
	})
	return usage{Files: len(links), Goroutines: runtime.NumGoroutine(), Heap: m.HeapAlloc}
}
