package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/workcell-dev/workcell/internal/guest/launch"
	"github.com/workcell-dev/workcell/internal/guest/netguard"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/server"
	"golang.org/x/sys/unix"
)

// version is the content version of the guest agent, set by hack/build-guest.sh.
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
			return exit(connect(args[1:]))
		case "report":
			return exit(report(os.Stdout))
		case "install":
			return exit(install(args[1:]))
		case "network-trial":
			return networkTrial(args[1:])
		case "tunnel":
			return tunnel(args[1:], os.Getenv("HTTPS_PROXY"), os.Stdin, os.Stdout, os.Stderr)
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

// serve runs the guest agent.
func serve(args []string) int {
	protection := proc.Protect()
	log := newLog()
	cfg := server.Config{Version: version, Protection: protection, Log: log,
		Orphaned: func() { os.Exit(0) }}
	flags := flag.NewFlagSet("workcell-guest", flag.ContinueOnError)
	flags.SetOutput(log)
	flags.StringVar(&cfg.Workdir, "workdir", "/workspace", "root of file requests and default directory of commands")
	flags.StringVar(&cfg.Scratch, "scratch", "/tmp", "second root of file requests; empty for none")
	flags.DurationVar(&cfg.OrphanTimeout, "orphan-timeout", 0, "end after this time without hosts or commands; 0: never")
	flags.BoolVar(&cfg.Ephemeral, "ephemeral", false, "don't count processes of ended commands for that")
	flags.Int64Var(&cfg.Workspace.Bytes, "workspace-bytes", 0, "size limit of the work directory; 0 for none")
	flags.Int64Var(&cfg.Workspace.Files, "workspace-files", 0, "limit of files and directories there; 0 for none")
	flags.BoolVar(&cfg.Workspace.Watched, "workspace-watched", false, "the guest enforces this limit itself")
	flags.Int64Var(&cfg.Layer.Bytes, "root-bytes", 0, "size limit of changes outside of the work directory; 0 for none")
	flags.Int64Var(&cfg.Layer.Files, "root-files", 0, "limit of changed files and directories there; 0 for none")
	openFiles := flags.Uint64("open-files", 0, "open files of each process, if the engine sets no limit; 0 for none")
	fileBytes := flags.Uint64("file-bytes", 0, "size of a file, if the engine sets no limit; 0 for none")
	listen := flags.Int("listen-fd", -1, "serve hosts on this socket, not on the abstract one")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := errors.Join(lower(unix.RLIMIT_NOFILE, *openFiles), lower(unix.RLIMIT_FSIZE, *fileBytes)); err != nil {
		return fail(log, err)
	}
	s, err := server.New(cfg)
	if err != nil {
		return fail(log, err)
	}
	if os.Getpid() != 1 { // not an init process, so it exits when the input ends
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // the reason for the end is irrelevant
			if err := s.Close(); err != nil {
				os.Exit(fail(log, err))
			}
			os.Exit(0)
		}()
	}
	if *listen >= 0 {
		return fail(log, s.ServeListener(os.NewFile(uintptr(*listen), "listener")))
	}
	return fail(log, s.ServeSocket())
}

// lower lowers a resource limit of this process and all child processes, unless the limit is already as low.
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

// tools runs the tools command, with which code in the sandbox calls host tools from a shell.
func tools(args []string) int {
	c := &toolsCommand{in: os.Stdin, out: os.Stdout, err: os.Stderr, address: os.Getenv(toolsVariable),
		trace: os.Getenv("TRACEPARENT")}
	return c.run(args)
}

// exit returns the exit code for err.
func exit(err error) int {
	if err == nil {
		return 0
	}
	return fail(os.Stderr, err)
}

func fail(w io.Writer, err error) int {
	_, _ = fmt.Fprintf(w, "workcell-guest: %v\n", err) // a write error cannot be reported anywhere
	return 1
}

// maxLog is the maximum log size if standard error is a regular file, because the file keeps all output.
const maxLog = 256 << 10

// log writes to standard error and never waits for a reader.
type log struct{ left *atomic.Int64 } // remaining bytes; nil for no limit

func newLog() log {
	_ = unix.SetNonblock(2, true) // fails only if there is no standard error
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
		_, _ = unix.Write(2, p) // the rest is dropped if the write is incomplete
	}
	return len(p), nil
}
