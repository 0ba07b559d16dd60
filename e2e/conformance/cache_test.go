package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/cache"
)

// cached returns a manager with the caches in a new directory, including a cache for the test.
func cached(t *testing.T, b backend.SandboxBackend) (*cache.Store, *session.Manager) {
	t.Helper()
	store, err := cache.Open(filepath.Join(privateDir(t), "caches"), cache.Own("models", "MODEL_DIR"))
	must(t, err)
	return store, manager(t, b, session.Options{Caches: store.Caches()})
}

// fill fills the test's cache with a shell command in CACHE_DIR.
func fill(t *testing.T, store *cache.Store, m *session.Manager, line string, o cache.FillOptions) error {
	t.Helper()
	o.Name, o.Request, o.Argv = "models", request(), []string{"sh", "-c", "cd $CACHE_DIR && " + line}
	_, err := store.Fill(t.Context(), m, o)
	return err
}

func reading(names ...string) session.Request {
	req := request()
	req.Caches = names
	return req
}

// TestCache: the files of a cache are visible in sandboxes that request the cache and in no others, and changes by a
// sandbox stay in the sandbox.
func TestCache(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		store, m := cached(t, e.connect(t))
		if e.name == "kubernetes" { // the nodes have no directory of the host
			must(t, fill(t, store, m, "echo one >a", cache.FillOptions{}))
			if _, _, err := m.Open(t.Context(), session.UserKey("reader"), reading("models")); !errors.Is(err, backend.ErrUnsupported) {
				t.Errorf("%v, want ErrUnsupported", err)
			}
			return
		}
		early := open(t, m, session.UserKey("early"), reading("models", "pip"))
		if got := output(t, early, "echo $MODEL_DIR$PIP_FIND_LINKS; ls /var/cache/workcell 2>/dev/null; true"); got != "\n" {
			t.Errorf("before the cache exists: %q", got)
		}
		must(t, fill(t, store, m, "mkdir sub && echo one >sub/a && echo tool >run && chmod 700 run && chmod 600 sub/a", cache.FillOptions{}))
		reader := open(t, m, session.UserKey("reader"), reading("models", "pip", "models"))
		const script = "cat $MODEL_DIR/sub/a; test -x $MODEL_DIR/run && echo runs; for at in $MODEL_DIR /var/cache/workcell /var/cache/workcell/models/sub; do " +
			"(echo x >$at/new || mkdir $at/newdir || ln -s /etc $at/link) 2>/dev/null; done; " +
			"(echo x >$MODEL_DIR/sub/a || rm $MODEL_DIR/sub/a || mv $MODEL_DIR/sub /tmp/x || chmod 777 $MODEL_DIR/run) 2>/dev/null || echo readonly; echo $MODEL_DIR"
		if got := output(t, reader, script); got != "one\nruns\nreadonly\n/var/cache/workcell/models\n" {
			t.Errorf("inside: %q", got)
		}
		if got := output(t, open(t, m, session.UserKey("other"), request()), "echo $MODEL_DIR; ls /var/cache/workcell 2>/dev/null; true"); got != "\n" {
			t.Errorf("one that did not ask for it: %q", got)
		}
		if got, err := filepath.Glob(filepath.Join(store.Caches()[3].Source, "*")); err != nil || len(got) != 2 {
			t.Errorf("outside: %v, %v", got, err)
		}
		// Another fill adds files, and running readers keep the old files.
		must(t, fill(t, store, m, "echo two >b", cache.FillOptions{}))
		if got := output(t, reader, "cat $MODEL_DIR/sub/a; ls $MODEL_DIR"); got != "one\nrun\nsub\n" {
			t.Errorf("the reader has %q", got)
		}
		if got := output(t, open(t, m, session.UserKey("later"), reading("models")), "ls $MODEL_DIR"); got != "b\nrun\nsub\n" {
			t.Errorf("a later one has %q", got)
		}
		_, _, err := m.Open(t.Context(), session.UserKey("reader"), request())
		if conflict := new(session.ConflictError); !errors.As(err, &conflict) || strings.Join(conflict.Fields, ",") != "cache" {
			t.Errorf("without the cache: %v", err)
		}
		open(t, m, session.UserKey("reader"), reading("pip", "models"))
		if _, _, err := m.Open(t.Context(), session.UserKey("x"), reading("model\x1b[0m")); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "available: pip, npm, go, models") {
			t.Errorf("one that there is not: %v", err)
		}
		must(t, store.Remove("models"))
		if got := output(t, reader, "cat $MODEL_DIR/sub/a"); got != "one\n" {
			t.Errorf("after it was emptied: %q", got)
		}
	})
}

// TestCacheOfHostileFill: a command that fills a cache cannot access anything outside of the cache or exceed the size,
// and a failed command changes nothing.
func TestCacheOfHostileFill(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		if e.name == "kubernetes" { // caches cannot be filled a second time there, see TestCache
			return
		}
		store, m := cached(t, e.connect(t))
		secret := filepath.Join(t.TempDir(), "secret")
		must(t, os.WriteFile(secret, []byte("secret"), 0o600))
		must(t, fill(t, store, m, "echo good >good; ln -s "+secret+" link; ln -s /etc dir; ln good hard; mkfifo pipe; mkdir -m 0 closed; chmod 4755 good; umask 777; mkdir shut; chmod 700 closed shut", cache.FillOptions{}))
		source := store.Caches()[3].Source
		entries, err := os.ReadDir(source)
		if err != nil || len(entries) != 4 {
			t.Fatalf("filled with %v, %v; want good, hard, closed, shut", entries, err)
		}
		for _, f := range entries {
			info, err := f.Info()
			must(t, err)
			if want := map[bool]os.FileMode{true: os.ModeDir | 0o755, false: 0o755}[f.IsDir()]; info.Mode() != want {
				t.Errorf("%s is %v", f.Name(), info.Mode())
			}
		}
		for name, line := range map[string]string{
			"too large":   "head -c 3000000 /dev/zero >large",
			"many":        "for i in 1 2 3; do head -c 900000 /dev/zero >large$i; done",
			"fails":       "rm good; exit 3",
			"replaced":    "cd .. && rm -rf fill && ln -s /proc fill",
			"unreadable":  "mkdir no && echo x >no/file && chmod 0 no",
			"not there":   "cd .. && rm -rf fill",
			"over itself": "rm good; mkdir good; head -c 9000000 /dev/zero >good/x",
		} {
			if err := fill(t, store, m, line, cache.FillOptions{MaxBytes: 2 << 20}); err == nil {
				t.Errorf("%s: no error", name)
			} else if strings.HasPrefix(name, "too") && !errors.Is(err, backend.ErrTooLarge) {
				t.Errorf("%s: %v", name, err)
			}
			if got, err := os.ReadFile(filepath.Join(source, "good")); string(got) != "good\n" {
				t.Fatalf("%s: the cache has %q, %v", name, got, err)
			}
		}
		must(t, fill(t, store, m, "echo new >new", cache.FillOptions{Fresh: true}))
		if got, err := filepath.Glob(filepath.Join(source, "*")); err != nil || len(got) != 1 {
			t.Errorf("a fresh one has %v, %v", got, err)
		}
		if left, err := filepath.Glob(filepath.Join(filepath.Dir(source), "new-*")); err != nil || left != nil {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}
