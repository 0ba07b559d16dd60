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

// Limits of a guest agent.
const (
	maxStreams  = 1024             // concurrent requests
	maxRunning  = 512              // running commands
	maxFinished = 256              // ended commands in the registry
	fsParallel  = 8                // concurrent file operations, each of which blocks a thread
	hostSilence = 30 * time.Second // a host silent for this long is gone; hosts send heartbeats every 10 s
)

// Config configures a guest agent. Only Workdir is required.
type Config struct {
	// Workdir is the absolute path of the root for file requests, and the default working directory of commands, for
	// example /workspace. It must exist.
	Workdir string
	// Scratch is the absolute path of a second root for file requests, for example /tmp, without a size limit. If Scratch
	// is empty or cannot be opened, there is no second root.
	Scratch string
	// Version is the content version of the guest agent, for the hello.
	Version string
	// OrphanTimeout is how long the guest agent waits if no host is connected and no command is running. Then it calls
	// Orphaned, which should end the process. If zero, the guest agent never calls Orphaned.
	OrphanTimeout time.Duration
	Orphaned      func()
	// Ephemeral marks a sandbox of a single host process. If this process is gone, background processes of ended commands
	// do not keep the guest agent running.
	Ephemeral bool
	// Protection is the protection of the process. If nil, it defaults to proc.Unprotected.
	Protection *proc.Protection
	// Workspace is the limit of the files below Workdir.
	Workspace disk.Limit
	// Layer is the limit of the data written by commands to the root file system outside of Workdir, without other mounts.
	// It requires a guest agent as the first process of a container. Layer is always monitored, so Watched is implied.
	Layer disk.Limit
	// Log receives messages about failures. If nil, they are discarded. Writes must not block.
	Log io.Writer
}

// Server is a guest agent. It is safe for concurrent use.
type Server struct {
	cfg     Config
	started time.Time
	bootID  string
	home    string // home directory of commands
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

	requests sync.WaitGroup // active streams
}

// New returns a Server, which reaps every child of this process. The caller must call Close.
func New(cfg Config) (*Server, error) {
	cfg.Log = cmp.Or(cfg.Log, io.Discard)
	fs := make(disk.Gate, fsParallel)
	f, err := files.Open(cfg.Workdir, fs)
	if err != nil {
		return nil, err
	}
	if cfg.Protection == nil {
		cfg.Protection = proc.Unprotected()
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // documented to never fail
	s := &Server{cfg: cfg, started: time.Now(), bootID: hex.EncodeToString(id[:]), home: findHome(cfg.Workdir), files: f}
	s.routed = sync.OnceValue(routed)
	s.memory = proc.OpenMemory()
	s.spawner, err = proc.NewSpawner(cfg.Workdir, cfg.Protection)
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

// limitDisk starts enforcing the limits for written data.
func (s *Server) limitDisk() error {
	if s.cfg.Workspace.Watched || s.cfg.Layer.Bytes > 0 {
		s.cfg.Protection.RefuseAllocation()
	}
	stop := func(why string) func() { return func() { s.endCommands(why) } }
	var err error
	s.quotas.Workspace, err = disk.NewQuota(s.cfg.Workdir, nil, s.cfg.Workspace, stop("the workspace is"), s.inUse)
	if err != nil {
		return err
	}
	s.cfg.Layer.Watched = true
	layer := disk.NewLayer("/", s.cfg.Workdir)
	s.quotas.Layer, err = disk.NewQuota("/", layer, s.cfg.Layer, stop("the rest of the root is"), s.inUse)
	return err
}

// Close kills all commands and releases all resources. All connections must have ended.
func (s *Server) Close() error {
	s.orphan.count(1) // counts the server itself, permanently
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

// kill requests a kill of every command and returns the running commands. It does not wait for their end.
func (s *Server) kill(grace time.Duration, state wire.ExecState) (ran []*execution) {
	for _, e := range s.execs.all() {
		if !e.final() {
			e.kill(min(grace, e.grace), state)
			ran = append(ran, e)
		}
	}
	return ran
}

// killAll kills every command and all remaining processes of commands. It returns the previously running commands.
func (s *Server) killAll(grace time.Duration) []*execution {
	ran := s.kill(grace, wire.ExecKilled)
	for _, e := range ran {
		<-e.ended
	}
	s.spawner.KillTagged(grace)
	return ran
}

// endCommands kills every command because a limit was exceeded. It does not wait for their results.
func (s *Server) endCommands(why string) {
	s.logf("%s over its limit: ending all commands", why)
	s.kill(0, wire.ExecQuotaKilled)
	s.spawner.KillTagged(0)
}

// inUse reports whether a command or a remaining process of a command is running.
func (s *Server) inUse() bool {
	return s.execs.active() > 0 || s.spawner.Busy()
}

// hello returns the description of the guest agent.
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

// guard prevents a panic in one request from ending the sandbox.
func (s *Server) guard(what string) {
	if r := recover(); r != nil {
		s.logf("panic in %s: %v", what, r)
	}
}
