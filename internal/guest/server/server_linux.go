package server

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/disk"
	"github.com/workcell-dev/workcell/internal/guest/files"
	"github.com/workcell-dev/workcell/internal/guest/output"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Bounds of a guest.
const (
	maxStreams  = 1024             // requests under way
	maxRunning  = 512              // execs under way
	maxFinished = 256              // ended execs that are remembered
	fsParallel  = 8                // file operations, which block a thread each
	hostSilence = 30 * time.Second // a host that sends nothing for this long is gone; it sends heartbeats every 10 s
)

// Config is what a guest serves. The zero value of every field but Workdir is good.
type Config struct {
	// Workdir is the absolute root of the file requests and the default directory of commands. It must exist.
	Workdir string
	// Scratch is the absolute path of a second root of the file requests, without a limit of its own; empty is none. It is
	// left out when it cannot be opened.
	Scratch string
	// Version is the guest's content version, for the hello.
	Version string
	// OrphanTimeout is how long the guest lives if no host is connected and nothing runs. Zero is forever. Then it
	// calls Orphaned, which should end the process.
	OrphanTimeout time.Duration
	Orphaned      func()
	// Ephemeral means that the sandbox belongs to one host process. If the host is gone, background processes of ended
	// commands don't keep the guest alive.
	Ephemeral bool
	// ReapAll makes the guest reap every child of its process. A process of its own sets it; a guest inside another
	// program must not, or it would steal that program's children.
	ReapAll bool
	// Protection is the process's own; nil is proc.Unprotected.
	Protection *proc.Protection
	// Workspace is the limit of what lies below Workdir.
	Workspace disk.Limit
	// Layer is the limit of what commands write to the root file system outside of Workdir, without what is mounted
	// elsewhere; the guest must be the first process of a container. Watched goes without saying.
	Layer disk.Limit
	// Log receives lines about what went wrong; nil drops them. Writes must not block.
	Log io.Writer
}

// Server is a guest. Its methods may be called concurrently.
type Server struct {
	cfg     Config
	started time.Time
	bootID  string
	home    string // of commands
	files   *files.Service
	spawner *proc.Spawner
	execs   *registry
	spills  *output.Spiller

	services map[string]*service // by name; never changed
	routed   func() bool         // see routed

	dials  atomic.Int64 // open connections to ports
	memory *proc.Memory
	orphan *lease
	quotas disk.Quotas
	admit  func() (disk.Marks, error) // waits until a command may start

	requests sync.WaitGroup // streams being served
}

// New makes a guest. Close must be called at its end.
func New(cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	fs := make(disk.Gate, fsParallel)
	f, err := files.Open(cfg.Workdir, fs)
	if err != nil {
		return nil, err
	}
	if cfg.Protection == nil {
		cfg.Protection = proc.Unprotected()
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, started: time.Now(), bootID: hex.EncodeToString(id[:]), home: findHome(cfg.Workdir), files: f}
	s.routed = sync.OnceValue(routed)
	s.memory = proc.OpenMemory()
	s.spawner, err = proc.NewSpawner(cfg.Workdir, cfg.ReapAll, cfg.Protection)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s.execs = newRegistry()
	s.orphan = newLease(cmp.Or(max(0, cfg.OrphanTimeout), never), s.orphaned)
	if err := s.limitDisk(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.admit = s.quotas.Admit
	f.Limit(s.quotas.Workspace)
	if cfg.Scratch != "" {
		if err := f.AddScratch(cfg.Scratch, s.memory.Fits); err != nil {
			s.logf("no file requests below %s: %v", cfg.Scratch, err)
		}
	}
	s.services = s.openServices()
	s.spills = output.NewSpiller(f.Root(), fs, s.quotas.Workspace, cfg.Workspace.Bytes)
	return s, nil
}

// limitDisk begins to hold the limits of what is written.
func (s *Server) limitDisk() error {
	if s.cfg.Workspace.Watched || s.cfg.Layer.Bytes > 0 {
		s.cfg.Protection.RefuseAllocation()
	}
	var err error
	s.quotas.Workspace, err = disk.NewQuota(s.cfg.Workdir, nil, s.cfg.Workspace, func() { s.endCommands("the workspace is") }, s.inUse)
	if err != nil {
		return err
	}
	s.cfg.Layer.Watched = true
	s.quotas.Layer, err = disk.NewQuota("/", disk.NewLayer("/", s.cfg.Workdir), s.cfg.Layer, func() { s.endCommands("the rest of the root is") }, s.inUse)
	return err
}

// Close kills all commands and releases what the guest holds. The connections must have ended.
func (s *Server) Close() error {
	s.orphan.count(1) // the server itself, for good
	s.quotas.Close()
	s.killAll(0)
	for _, sv := range s.services {
		sv.close()
	}
	s.requests.Wait()
	s.spawner.Close()
	s.memory.Close()
	return s.files.Close()
}

// kill has every command end and returns those that ran. It does not wait for them.
func (s *Server) kill(grace time.Duration, state wire.ExecState) (ran []*execution) {
	for _, e := range s.execs.all() {
		if !e.final() {
			e.kill(min(grace, e.grace), state)
			ran = append(ran, e)
		}
	}
	return ran
}

// killAll ends every command, and what commands left behind. It returns the commands that ran.
func (s *Server) killAll(grace time.Duration) []*execution {
	ran := s.kill(grace, wire.ExecKilled)
	for _, e := range ran {
		<-e.ended
	}
	s.spawner.KillTagged(grace)
	return ran
}

// endCommands ends every command because a limit was passed. It does not wait for their results.
func (s *Server) endCommands(why string) {
	s.logf("%s over its limit: ending all commands", why)
	s.kill(0, wire.ExecQuotaKilled)
	s.spawner.KillTagged(0)
}

// inUse reports whether a command runs, or what one left behind.
func (s *Server) inUse() bool {
	return s.execs.active() > 0 || s.spawner.Busy()
}

// hello describes the guest.
func (s *Server) hello() wire.Hello {
	return wire.Hello{
		Version:  s.cfg.Version,
		PID:      os.Getpid(),
		UID:      os.Getuid(),
		Workdir:  s.cfg.Workdir,
		Home:     s.home,
		BootID:   s.bootID,
		Programs: proc.Programs(os.Getenv("PATH")),
	}
}

func (s *Server) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(s.cfg.Log, "workcell-guest: "+format+"\n", args...) // the log is best effort
}

// guard keeps a panic in one request from ending the sandbox.
func (s *Server) guard(what string) {
	if r := recover(); r != nil {
		s.logf("panic in %s: %v", what, r)
	}
}
