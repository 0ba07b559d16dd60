package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
)

// A reaper is a process of this command that outlives the one that has sandboxes. It sleeps until that one has ended, and
// does then what every later command would do: it removes what was left when its time has come. So sandboxes of a process
// that was killed go although nobody runs the command again.

// reaperVariable turns reapers off.
const reaperVariable = "WORKCELL_REAPER"

// settleTimeout bounds the look at the records at the end of a command.
const settleTimeout = 10 * time.Second

// guardedStore starts a reaper when its manager is about to have its first sandbox, and ends it when none is left that
// time would take away.
type guardedStore struct {
	*sqlitestore.Store
	engine  string                                // as in records
	launch  func(owner string) (*exec.Cmd, error) // starts a reaper
	failed  func(error)                           // is told why there is none
	owner   string                                // set by Join, which comes first
	once    sync.Once
	started chan struct{} // closed when launch returned
	reaper  *exec.Cmd     // nil for none; not before started is closed
}

// guarded gives the store that a manager of this command is to use.
func (a *app) guarded(store *sqlitestore.Store, backendName, engine string) session.Store {
	if !canReap || strings.EqualFold(a.env.Get(reaperVariable), "off") {
		return store
	}
	return &guardedStore{
		Store: store, engine: engine, started: make(chan struct{}),
		launch: func(owner string) (*exec.Cmd, error) { return a.launchReaper(owner, backendName) },
		failed: func(err error) {
			fmt.Fprintf(a.stderr, "workcell: should this process be killed, its sandboxes stay until the next command: no reaper can be started: %s\n",
				sanitize.Line(err.Error()))
		},
	}
}

// Join is the store's. The reaper goes before the owner does: it would take the end of this process for its turn.
func (g *guardedStore) Join(ctx context.Context) (string, func() error, error) {
	owner, leave, err := g.Store.Join(ctx)
	g.owner = owner
	return owner, sync.OnceValue(func() error {
		g.settle()
		return leave()
	}), err
}

// Insert is the store's; the record of a sandbox that is about to be made comes this way.
func (g *guardedStore) Insert(ctx context.Context, rec session.Record) error {
	err := g.Store.Insert(ctx, rec)
	if err == nil && rec.Owner == g.owner {
		g.start()
	}
	return err
}

// Update is the store's; the record of a sandbox that was taken over, or woken, comes this way.
func (g *guardedStore) Update(ctx context.Context, rec session.Record) error {
	err := g.Store.Update(ctx, rec)
	if err == nil && rec.State.Live() && rec.Owner == g.owner {
		g.start()
	}
	return err
}

// start starts the reaper once, beside whatever its caller does.
func (g *guardedStore) start() {
	g.once.Do(func() {
		go func() {
			defer close(g.started)
			var err error
			if g.reaper, err = g.launch(g.owner); err != nil {
				g.failed(err)
			}
		}()
	})
}

// settle ends the reaper, unless there is something for it to wait for.
func (g *guardedStore) settle() {
	g.once.Do(func() { close(g.started) }) // too late to start one
	<-g.started
	if g.reaper == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	if _, waits, err := nextTurn(ctx, g.Store, g.engine, g.owner); waits || err != nil {
		return
	}
	_ = g.reaper.Process.Kill() // it has ended already, or does now
	_ = g.reaper.Wait()
}

// nextTurn tells when a sweep of an engine will have something to do next; ok is false when time will bring it nothing. An
// owner besides is taken for dead.
func nextTurn(ctx context.Context, store *sqlitestore.Store, engine, besides string) (at time.Time, ok bool, err error) {
	recs, err := store.List(ctx)
	if err != nil {
		return at, false, err
	}
	now := time.Now()
	for _, rec := range recs {
		goes, will := rec.ReclaimAt(now)
		if !will || rec.Engine != engine || ok && !goes.Before(at) {
			continue
		}
		if rec.Owner != besides {
			lives, err := store.Lives(ctx, rec.Owner)
			if err != nil {
				return at, false, err
			}
			if lives {
				continue // that one's process has a reaper of its own
			}
		}
		at, ok = goes, true
	}
	return at, ok, nil
}

// launchReaper starts a reaper that waits for the end of an owner. It has nothing of this process: no stream or descriptor
// that somebody may wait to be closed, no terminal, not the directory, and of the environment what leads to the engine.
func (a *app) launchReaper(owner, backendName string) (*exec.Cmd, error) {
	dir, err := a.stateDir()
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil, err
	}
	environ, err := a.engines().Environ() // without keys of models and the like: they would be kept for longer than anybody expects
	if err != nil {
		return nil, err
	}
	self, err := thisProgram()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "reaper", "--state-dir", dir, "--backend", backendName, "--owner", owner)
	cmd.Args[0], cmd.Dir, cmd.Env = "workcell", string(filepath.Separator), append(environ, reaperVariable+"=off")
	if err := detach(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	makeNice(cmd.Process.Pid)
	return cmd, nil
}

// thisProgram gives the file of this very program, also when another one is in its place by now.
func thisProgram() (string, error) {
	path, err := os.Executable()
	if runtime.GOOS != "linux" {
		return path, err
	}
	const link = "/proc/self/exe"
	own, err := os.Stat(link)
	if err != nil {
		return "", err
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(own, there) {
		return link, nil
	}
	return path, nil
}
