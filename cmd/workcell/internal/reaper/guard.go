// Package reaper is the process that outlives the one that has sandboxes. It sleeps until that one has ended, and does
// then what every later command would do: it removes what was left when its time has come. So sandboxes of a process
// that was killed go although nobody runs the command again.
package reaper

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/session/record"
)

// Command is the name of the command that a reaper runs, and Variable the variable that turns reapers off.
const (
	Command  = "reaper"
	Variable = "WORKCELL_REAPER"
)

// settleTimeout bounds the look at the records at the end of a command.
const settleTimeout = 10 * time.Second

// Options say what a reaper is for.
type Options struct {
	Dir     string                   // the state directory
	Backend string                   // name of the engine's driver
	Engine  string                   // as in records
	Environ func() ([]string, error) // the variables by which the same engine is found
	Failed  func(error)              // is called when no reaper can be started
}

// Guard returns a store that starts a reaper when its manager is about to have its first sandbox, and ends it when none
// is left that time would take away.
func Guard(store state.Records, o Options) record.Store {
	return &guardedStore{Records: store, o: o, started: make(chan struct{})}
}

type guardedStore struct {
	state.Records
	o       Options
	owner   string // set by Join, which comes first
	once    sync.Once
	started chan struct{} // closed when launch returned
	reaper  *exec.Cmd     // nil for none; not before started is closed
}

// Join is the store's. The reaper goes before the owner does: it would take the end of this process for its cue.
func (g *guardedStore) Join(ctx context.Context) (string, func() error, error) {
	owner, leave, err := g.Records.Join(ctx)
	g.owner = owner
	return owner, sync.OnceValue(func() error {
		g.settle()
		return leave()
	}), err
}

// Insert is the store's; the record of a sandbox that is about to be made comes this way.
func (g *guardedStore) Insert(ctx context.Context, rec record.Record) error {
	err := g.Records.Insert(ctx, rec)
	if err == nil && rec.Owner == g.owner {
		g.start()
	}
	return err
}

// Update is the store's; the record of a sandbox that was adopted, or resumed, comes this way.
func (g *guardedStore) Update(ctx context.Context, rec record.Record) error {
	err := g.Records.Update(ctx, rec)
	if err == nil && rec.State.Live() && rec.Owner == g.owner {
		g.start()
	}
	return err
}

// start starts the reaper once, in the background.
func (g *guardedStore) start() {
	g.once.Do(func() {
		go func() {
			defer close(g.started)
			var err error
			if g.reaper, err = g.o.launch(g.owner); err != nil {
				g.o.Failed(err)
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
	if _, waits, err := nextDue(ctx, g.Records, g.o.Engine, g.owner); waits || err != nil {
		return
	}
	_ = g.reaper.Process.Kill() // it has ended already, or does now
	_ = g.reaper.Wait()
}

// launch starts a reaper that waits for the end of an owner. It has nothing of this process: no stream or descriptor
// that somebody may wait to be closed, no terminal, not the directory, and of the environment what leads to the engine.
// Keys of models and the like would be kept for longer than anybody expects.
func (o Options) launch(owner string) (*exec.Cmd, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	environ, err := o.Environ()
	if err != nil {
		return nil, err
	}
	self, err := thisProgram()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, Command, "--state-dir", dir, "--backend", o.Backend, "--engine", o.Engine, "--owner", owner)
	cmd.Args[0], cmd.Dir, cmd.Env = "workcell", string(filepath.Separator), append(environ, Variable+"=off")
	if err := detach(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	makeNice(cmd.Process.Pid)
	return cmd, nil
}

// thisProgram returns the file of this very program, also when another one is in its place by now.
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
