package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/disk"
	"github.com/workcell-dev/workcell/internal/guest/launch"
	"github.com/workcell-dev/workcell/internal/guest/netguard"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/server"
	"golang.org/x/sys/unix"
)

// version is the content version of the guest, set by hack/build-guest.sh.
var version = "dev"

func main() {
	if filepath.Base(os.Args[0]) == "tools" {
		os.Exit(tools(os.Args[1:]))
	}
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) > 0 {
		switch args[0] {
		case "tools":
			return tools(args[1:])
		case "version":
			fmt.Println(version)
			return 0
		case "connect":
			return connect(args[1:])
		case "report":
			if err := report(os.Stdout); err != nil {
				return fail(os.Stderr, err)
			}
			return 0
		case "install":
			return install(args[1:])
		case "network-trial":
			return networkTrial(args[1:])
		case "mcp":
			return mcp(os.Stdin, os.Stdout)
		case "interpret":
			return interpret(args[1:], os.Stdin, os.Stdout, os.Stderr)
		case netguard.Command:
			return netguard.Main(args[1:], os.Stdout)
		case launch.Command:
			return launch.Main()
		}
	}
	return serve(args)
}

// serve is the guest itself.
func serve(args []string) int {
	protection := proc.Protect()
	log := newLog()
	flags := flag.NewFlagSet("workcell-guest", flag.ContinueOnError)
	flags.SetOutput(log)
	workdir := flags.String("workdir", "/workspace", "root of file requests and default directory of commands")
	scratch := flags.String("scratch", "/tmp", "second root of file requests; empty for none")
	orphan := flags.Duration("orphan-timeout", 0, "end if no host came and nothing ran for this long; 0 for never")
	ephemeral := flags.Bool("ephemeral", false, "don't count processes of ended commands for that")
	var limit, layer disk.Limit
	flags.Int64Var(&limit.Bytes, "workspace-bytes", 0, "limit of what lies in the work directory; 0 for none")
	flags.Int64Var(&limit.Files, "workspace-files", 0, "limit of how many files and directories lie there; 0 for none")
	flags.BoolVar(&limit.Watched, "workspace-watched", false, "the limit is this program's to enforce, nobody else does")
	flags.Int64Var(&layer.Bytes, "root-bytes", 0, "limit of what is written outside of the work directory; 0 for none")
	flags.Int64Var(&layer.Files, "root-files", 0, "limit of how many files and directories are made or changed there; 0 for none")
	openFiles := flags.Uint64("open-files", 0, "limit of open files of every process, where no engine has set one; 0 leaves it")
	fileBytes := flags.Uint64("file-bytes", 0, "limit of a file's size for every process, where no engine has set one; 0 leaves it")
	listen := flags.Int("listen-fd", -1, "serve hosts on this listening socket, not on the standard streams")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := errors.Join(lower(unix.RLIMIT_NOFILE, *openFiles), lower(unix.RLIMIT_FSIZE, *fileBytes)); err != nil {
		return fail(log, err)
	}
	var stream *stdio
	if *listen < 0 {
		var err error
		if stream, err = takeStdio(); err != nil {
			return fail(log, err)
		}
	}
	s, err := server.New(server.Config{Workdir: *workdir, Scratch: *scratch, Version: version,
		OrphanTimeout: *orphan, Ephemeral: *ephemeral,
		Orphaned: func() { os.Exit(0) }, ReapAll: true, Protection: protection,
		Path: os.Getenv("PATH"), Log: log, Workspace: limit, Layer: layer})
	if err != nil {
		return fail(log, err)
	}
	if *listen >= 0 {
		return fail(log, s.ServeListener(os.NewFile(uintptr(*listen), "listener")))
	}
	if os.Getpid() != 1 { // it is nobody's init, and ends with its stream
		if err := s.ServeAttach(stream, true); !errors.Is(err, io.EOF) {
			return fail(log, err)
		}
		if err := s.Close(); err != nil {
			return fail(log, err)
		}
		return 0
	}
	if info, err := stream.in.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		return fail(log, s.ServeSocket()) // the engine attached nothing: this is the only way in
	}
	go func() { fail(log, s.ServeSocket()) }()
	fail(log, s.ServeAttach(stream, false))
	select {} // without its stream it can still be reached through its socket
}

// lower lowers a limit of this process and of those that it starts, unless it is as low already.
func lower(resource int, to uint64) error {
	var now unix.Rlimit
	if to == 0 {
		return nil
	}
	if err := unix.Getrlimit(resource, &now); err != nil || now.Max <= to {
		return err
	}
	return unix.Setrlimit(resource, &unix.Rlimit{Cur: to, Max: to})
}

// tools is what code inside calls the host's tools with from a shell.
func tools(args []string) int {
	c := &toolsCommand{in: os.Stdin, out: os.Stdout, err: os.Stderr, address: os.Getenv(toolsVariable), trace: os.Getenv("TRACEPARENT")}
	return c.run(args)
}

func fail(w io.Writer, err error) int {
	_, _ = fmt.Fprintf(w, "workcell-guest: %v\n", err) // there is nobody else to tell
	return 1
}

// stdio is the stream that the guest was started with.
type stdio struct{ in, out *os.File }

func (s *stdio) Read(p []byte) (int, error)         { return s.in.Read(p) }
func (s *stdio) SetReadDeadline(t time.Time) error  { return s.in.SetReadDeadline(t) }
func (s *stdio) SetWriteDeadline(t time.Time) error { return s.out.SetWriteDeadline(t) }
func (s *stdio) Close() error                       { return errors.Join(s.in.Close(), s.out.Close()) }

// drainPause lets a reader that empties the pipe in small steps make room for more than one of them.
const drainPause = 200 * time.Microsecond

// Write writes what the pipe takes at once, and the rest after a pause: containerd's shim reads 4 KiB at a time, and
// without the pause each of those would wake this process.
func (s *stdio) Write(p []byte) (int, error) {
	conn, err := s.out.SyscallConn()
	if err != nil {
		return 0, err
	}
	n := 0
	if err := conn.Write(func(fd uintptr) bool { n, _ = unix.Write(int(fd), p); return true }); err != nil {
		return 0, err
	}
	if n = max(n, 0); n == len(p) { // an error shows again below
		return n, nil
	}
	time.Sleep(drainPause)
	m, err := s.out.Write(p[n:])
	return n + m, err
}

// pipeSize is what the pipes of the stream should hold: more than a chunk.
const pipeSize = 256 << 10

// takeStdio takes standard input and output away from the process, so that nothing else can write into the protocol.
func takeStdio() (*stdio, error) {
	in, err := takeFD(0, "input")
	if err != nil {
		return nil, err
	}
	out, err := takeFD(1, "output")
	if err != nil {
		return nil, err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open", err)
	}
	defer unix.Close(null)
	return &stdio{in, out}, errors.Join(unix.Dup3(null, 0, 0), unix.Dup3(null, 1, 0))
}

func takeFD(fd int, name string) (*os.File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	_, _ = unix.FcntlInt(uintptr(own), unix.F_SETPIPE_SZ, pipeSize) // not a pipe, or the user has too many: slower
	if err := unix.SetNonblock(own, true); err != nil {
		return nil, os.NewSyscallError("nonblock", err)
	}
	return os.NewFile(uintptr(own), name), nil
}

// maxLog bounds what is written to a standard error that is a file, which stays where a stream passes.
const maxLog = 256 << 10

// log writes to standard error without ever waiting for a reader.
type log struct{ left *atomic.Int64 } // nil: without bound

func newLog() log {
	_ = unix.SetNonblock(2, true) // if that fails there is no standard error
	var st unix.Stat_t
	if unix.Fstat(2, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return log{}
	}
	l := log{new(atomic.Int64)}
	l.left.Store(maxLog)
	return l
}

func (l log) Write(p []byte) (int, error) {
	if l.left == nil || l.left.Add(-int64(len(p))) >= 0 {
		_, _ = unix.Write(2, p) // what does not fit is dropped
	}
	return len(p), nil
}
