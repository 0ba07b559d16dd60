// Package reaper implements a process with a longer life than the owner of sandboxes. It waits until the owner has
// ended. Then it removes the remaining sandboxes when they expire, like the cleanup of every later command. Therefore,
// the sandboxes of a killed process are removed even if the user runs no other command.
package reaper

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/session/record"
)

// Command is the name of the reaper's command. Variable is the environment variable to disable reapers.
const (
	Command  = "reaper"
	Variable = "WORKCELL_REAPER"
)

// settleTimeout limits the check of the records at the end of a command.
const settleTimeout = 10 * time.Second

// Options configures a reaper.
type Options struct {
	State   state.Place
	Env     func(name string) (string, bool) // returns variables to find the database of State
	Backend string                           // name of the engine's driver
	Engine  string                           // engine ID in the records
	Environ func() ([]string, error)         // returns the variables to find the same engine
	Failed  func(error)                      // called if no reaper can be started
}

// Guard returns a store. The store starts a reaper before the manager creates the first sandbox. At the end, it stops
// the reaper unless an expiring sandbox remains.
func Guard(store state.Records, o Options) record.Store {
	return &guardedStore{Records: store, o: o, started: make(chan struct{})}
}

type guardedStore struct {
	state.Records
	o       Options
	owner   string // set by Join, which is called first
	once    sync.Once
	started chan struct{} // closed when launch has returned
	reaper  *exec.Cmd     // nil for none; read only after started is closed
}

// Join joins the wrapped store. leave stops the reaper before it removes the owner, because the reaper would otherwise
// treat the end of the owner as the end of the process.
func (g *guardedStore) Join(ctx context.Context) (string, func() error, error) {
	owner, leave, err := g.Records.Join(ctx)
	g.owner = owner
	return owner, sync.OnceValue(func() error {
		g.settle()
		return leave()
	}), err
}

// Insert inserts a record into the wrapped store. It starts the reaper for the record of a new sandbox.
func (g *guardedStore) Insert(ctx context.Context, rec record.Record) error {
	err := g.Records.Insert(ctx, rec)
	if err == nil && rec.Owner == g.owner {
		g.start()
	}
	return err
}

// Update updates a record in the wrapped store. It starts the reaper for the record of an adopted or resumed sandbox.
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

// settle stops the reaper unless a sandbox will expire later.
func (g *guardedStore) settle() {
	g.once.Do(func() { close(g.started) }) // prevent a later start
	<-g.started
	if g.reaper == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	if _, waits, err := nextDue(ctx, g.Records, g.o.Engine, g.owner); waits || err != nil {
		return
	}
	_ = g.reaper.Process.Kill() // Wait then returns soon
	_ = g.reaper.Wait()
}

// launch starts a reaper for an owner. The reaper inherits no streams, descriptors, terminal, or working directory,
// because other programs may wait until these are closed. Of the environment, it inherits only the variables to find
// the engine, to avoid model keys and other secrets in memory for a long time.
func (o Options) launch(owner string) (*exec.Cmd, error) {
	dir, err := filepath.Abs(string(o.State.Dir))
	if err != nil {
		return nil, err
	}
	engine, err := o.Environ()
	if err != nil {
		return nil, err
	}
	self, err := thisProgram()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, Command, "--state-dir", dir, "--backend", o.Backend, "--engine", o.Engine, "--owner", owner)
	cmd.Args[0], cmd.Dir = "workcell", string(filepath.Separator)
	cmd.Env = append(append(engine, o.database()...), Variable+"=off")
	if err := detach(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	makeNice(cmd.Process.Pid)
	return cmd, nil
}

// databaseOptions are the options of a connection. Their variables begin with PG. fileOptions are names of files.
const (
	databaseOptions = "appname channelbinding connect_timeout database host maxprotocolversion minprotocolversion " +
		"options password port requireauth service sslmode sslnegotiation sslpassword sslsni targetsessionattrs tz " +
		"user " + fileOptions
	fileOptions = "passfile servicefile sslcert sslkey sslrootcert"
)

// fileOption matches an option of a URL that is the name of a file.
var fileOption = regexp.MustCompile("[?&](" + strings.ReplaceAll(fileOptions, " ", "|") + ")=[^&]*")

// database returns the variables to connect to the same database from any directory. Of the URL, it changes only the
// names of files, because the driver accepts more URLs than net/url.
func (o Options) database() (vars []string) {
	if o.State.URL == "" {
		return nil
	}
	for option := range strings.FieldsSeq(databaseOptions) {
		name := "PG" + strings.ToUpper(option)
		value, isSet := o.Env(name)
		if slices.Contains(strings.Fields(fileOptions), option) {
			value = absolute(value)
		}
		if isSet {
			vars = append(vars, name+"="+value)
		}
	}
	address := fileOption.ReplaceAllStringFunc(o.State.URL, func(option string) string {
		name, value, _ := strings.Cut(option, "=")
		file, err := url.PathUnescape(value)
		if err != nil {
			return option
		}
		return name + "=" + strings.ReplaceAll(url.QueryEscape(absolute(file)), "+", "%20")
	})
	return append(vars, state.Variable+"="+address)
}

// absolute returns the absolute path of a file. system means the system's certificates.
func absolute(file string) string {
	if path, err := filepath.Abs(file); err == nil && file != "" && file != "system" {
		return path
	}
	return file
}

// thisProgram returns the file of the running program, even if the path now contains another program.
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
