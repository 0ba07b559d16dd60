package promises

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// TestA6SwapRace reads and writes 10,000 times through a directory and a file that turn into links out of the workspace
// and back all the time.
func TestA6SwapRace(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		calls, workers := 8_000, 4
		if b == w.root {
			calls = 2_000
		}
		dir := b.dir(t)
		out := "/tmp/out-" + dir
		b.sh(t, "mkdir -p "+out+" && echo outside > "+out+"/f && echo outside > "+out+"/only-outside && cd "+dir+
			" && mkdir d && echo inside > d/f && ln -s "+out+" dl && echo inside > f && ln -s "+out+"/f fl")
		b.background(t, "swap.py", dir+"/d", dir+"/dl", dir+"/f", dir+"/fl")
		var wg sync.WaitGroup
		var done, refused atomic.Int64
		began := time.Now()
		for worker := range workers {
			wg.Go(func() {
				// On, should the calls not have met both of them yet.
				for i := worker; i < calls || done.Load() == 0 || refused.Load() == 0; i += workers {
					if t.Failed() || time.Since(began) > 2*patience {
						return
					}
					if swapCall(t, b, dir, i) {
						done.Add(1)
					} else {
						refused.Add(1)
					}
				}
			})
		}
		wg.Wait()
		t.Logf("%d calls did something, %d were refused", done.Load(), refused.Load())
		if done.Load() == 0 || refused.Load() == 0 {
			t.Error("the calls never met both the directory and the link")
		}
		if got := b.sh(t, "cd "+out+" && ls -A && cat f only-outside && rm -r "+out); got != "f\nonly-outside\noutside\noutside\n" {
			t.Errorf("outside: %q", got)
		}
	})
}

// swapCall does the i-th call and tells whether it was let in. Every tenth goes through the tools.
func swapCall(t *testing.T, b *box, dir string, i int) bool {
	ctx := t.Context()
	path := fmt.Sprintf("%s/d/new-%d", dir, i%64)
	var out obj
	var data []byte
	var err error
	switch i % 4 {
	case 0, 1:
		path = dir + []string{"/d/f", "/f"}[i%2]
		if i%10 < 2 {
			if out = b.call(t, toolspec.ToolFSRead, obj{"path": path}); code(out) == "" {
				data = contents(t, out)
			}
		} else {
			data, _, err = b.s.ReadFileBytes(ctx, path, session.ReadFileOptions{})
		}
		if code(out) == "" && err == nil && string(data) != "inside\n" {
			t.Errorf("%s: read %q", path, data)
		}
	case 3:
		// A file beside is written too, since overwriting f itself would end the race: it replaces the link.
		path = fmt.Sprintf("%s/d/deep-%d/g", dir, i%64)
		fallthrough
	case 2:
		if i%10 < 2 {
			out = b.call(t, toolspec.ToolFSWrite, obj{"path": path, "contents": "evil", "overwrite": true})
		} else {
			_, err = b.s.WriteFile(ctx, path, strings.NewReader("evil"), session.WriteFileOptions{Overwrite: true})
		}
	}
	switch got := string(code(out)) + class(err); toolspec.Code(got) {
	case "":
		return true
	case toolspec.CodePermission, toolspec.CodeNotFound, toolspec.CodeInvalid, toolspec.CodeExists:
		return false
	default:
		t.Errorf("call %d: %s", i, got)
	}
	return false
}

// TestA7DeleteRace deletes trees while their directories turn into links to what must stay.
func TestA7DeleteRace(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		out := "/tmp/out-" + dir
		b.sh(t, "mkdir -p "+out+"/a/b && echo canary > "+out+"/f && echo canary > "+out+"/a/b/f")
		b.background(t, "swap.py", dir+"/tree/d", dir+"/tree/dl", dir+"/tree/d/e", dir+"/tree/el", dir+"/tree", dir+"/treel")
		gone := 0
		for i := range 60 {
			// Made elsewhere and put in place whole: the commands themselves would follow the links.
			b.sh(t, "cd "+dir+" && mkdir -p made/d/e && touch made/d/1 made/d/2 made/d/e/3 && ln -s "+out+" made/dl && ln -s "+out+
				"/a made/el && ln -s "+out+" link && until rm -rf tree treel && mv -T made tree && mv -T link treel; do :; done 2>/dev/null")
			for _, path := range []string{"/tree/d", "/tree", "/treel"} {
				switch out := b.call(t, toolspec.ToolFSDelete, obj{"path": dir + path, "recursive": true}); code(out) {
				case "":
					gone++
				case toolspec.CodeNotFound, toolspec.CodePermission, toolspec.CodeInvalid, toolspec.CodeExists:
				default:
					t.Errorf("delete %d of %s: %v", i, path, out["error"])
				}
			}
		}
		if gone == 0 {
			t.Error("nothing was ever deleted")
		}
		if got := b.sh(t, "cd "+out+" && find . | sort && cat f a/b/f && rm -r "+out); got != ".\n./a\n./a/b\n./a/b/f\n./f\ncanary\ncanary\n" {
			t.Errorf("outside: %q", got)
		}
	})
}
