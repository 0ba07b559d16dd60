package promises

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// TestH5Descriptors has processes of a sandbox take all the descriptors that they can have, which is as many as a command
// may open, and all that their user can. Beside them commands and file tools work, and so do other sandboxes.
func TestH5Descriptors(t *testing.T) {
	t.Parallel()
	b := newBox(t, pythonBox())
	limit, err := strconv.Atoi(strings.TrimSpace(b.sh(t, "ulimit -Hn")))
	must(t, err)
	kinds := []string{"files", "epoll"}
	if w.name != "local" { // where the kernel would count them among those of the machine's root
		kinds = append(kinds, "inotify")
	}
	for _, kind := range kinds {
		n, why, _ := strings.Cut(strings.TrimSpace(b.background(t, "descriptors.py", kind)), " ")
		had, err := strconv.Atoi(n)
		if must(t, err); why != "EMFILE" || had > limit || kind != "inotify" && had < limit-100 {
			t.Errorf("%s: %d of %d, then %s", kind, had, limit, why)
		}
		b.alive(t)
	}
	b.ok(t, toolspec.ToolFSWrite, obj{"path": "f", "contents": "there"})
	if got := contents(t, b.ok(t, toolspec.ToolFSRead, obj{"path": "f"})); string(got) != "there" {
		t.Errorf("a file beside them holds %q", got)
	}
	newBox(t, pythonBox()).python(t, "descriptors.py", "files", "0")
}

// TestH6Spin keeps every processor busy from several sandboxes. Others are made, used and removed nevertheless.
func TestH6Spin(t *testing.T) {
	t.Parallel()
	var spinning []*box
	for range 3 {
		b := newBox(t, pythonBox())
		b.background(t, "spin.py", strconv.Itoa(2*runtime.NumCPU()))
		spinning = append(spinning, b)
	}
	m := newManager(t, w.driver, session.Options{})
	took := map[string][]time.Duration{}
	timed := func(what string, f func() error) {
		began := time.Now()
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		took[what] = append(took[what], time.Since(began))
	}
	for i := range 20 {
		timed("exec", func() error {
			_, err := w.user.s.Exec(t.Context(), session.ExecRequest{Argv: []string{"true"}})
			return err
		})
		timed("list", func() error { _, err := w.driver.List(t.Context(), backend.Filter{Instance: m.Instance()}); return err })
		if i%5 == 0 {
			key := session.WorkflowKey(session.NewRunID(), session.DefaultName)
			timed("open", func() error { _, _, err := m.Open(t.Context(), key, request()); return err })
			timed("close", func() error { return m.CloseScope(t.Context(), key.Scope()) })
		}
	}
	for what, list := range took {
		slices.Sort(list)
		t.Logf("%s: the slowest of twenty took %v, one in the middle %v", what, list[len(list)*19/20], list[len(list)/2])
	}
	for _, b := range spinning {
		b.alive(t)
	}
}
