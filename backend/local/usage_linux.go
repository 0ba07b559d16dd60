package local

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// Usage returns what the sandbox's control group has counted; nothing is known without one.
func (b *Backend) Usage(ctx context.Context, id string) (backend.Usage, error) {
	_, done, err := b.calls.Begin(ctx)
	if err != nil {
		return backend.Usage{}, err
	}
	defer done()
	x, err := b.own(id)
	if err != nil {
		return backend.Usage{}, err
	}
	if _, ok := x.running(b.machine.boot); !ok {
		return backend.Usage{}, fmt.Errorf("local: the sandbox does not run: %w", backend.ErrLost)
	}
	return b.group(x).usage(), nil
}

// usage reads the group's counters. What cannot be read is zero, which stands for unknown.
func (g group) usage() backend.Usage {
	if g.c.v2 {
		return backend.Usage{
			CPU:         time.Duration(readCounter(g.dir("cpu"), "cpu.stat", "usage_usec")) * time.Microsecond,
			MemoryBytes: readCounter(g.dir("memory"), "memory.current", ""),
		}
	}
	return backend.Usage{
		CPU:         time.Duration(readCounter(g.dir(accounting), "cpuacct.usage", "")),
		MemoryBytes: readCounter(g.dir("memory"), "memory.usage_in_bytes", ""),
	}
}

// readCounter reads the number in a file of a control group, in the line of a name where it has several. Zero when there
// is none.
func readCounter(dir, file, name string) int64 {
	if dir == "" {
		return 0
	}
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		text, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte(name))
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil {
			return n
		}
	}
	return 0
}
