package local

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/launch"
)

// namespaces are the namespaces created together. The cgroup namespace is created later, when the process is in the
// cgroups.
const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// launching is a running launcher.
type launching struct {
	pid    int
	config *os.File // input of the launcher
	status *os.File // output of the launcher
	own    string   // the state directory
	trees  []launch.Tree
}

// ambient returns the launcher's necessary capabilities in its own namespaces. The launcher drops them later.
func ambient() []uintptr {
	return []uintptr{
		unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETPCAP,
		unix.CAP_SYS_RESOURCE, unix.CAP_DAC_OVERRIDE,
	}
}

// fork starts a launcher with a listening socket and a log. Both may be nil.
func (b *driver) fork(i ids, listener, log *os.File) (*launching, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("local: %w", host.Public(err))
	}
	defer null.Close()
	theirConfig, config, err := os.Pipe()
	if err != nil {
		return nil, failed("creating a pipe", err)
	}
	defer theirConfig.Close()
	status, theirStatus, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(failed("creating a pipe", err), config.Close())
	}
	defer theirStatus.Close()
	listener, log = cmp.Or(listener, null), cmp.Or(log, null)
	uids, gids := i.mappings()
	pidfd := -1
	// Fd makes the launcher's ends blocking. The other ends stay non-blocking, so waiting for them needs no thread.
	files := []uintptr{null.Fd(), null.Fd(), log.Fd(), theirConfig.Fd(), theirStatus.Fd(), listener.Fd()}
	file := filepath.Join(b.guest, filepath.Base(embed.Path))
	pid, err := syscall.ForkExec(file, []string{filepath.Base(file), launch.Command}, &syscall.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1", "GOGC=off"}, Files: files,
		Sys: &syscall.SysProcAttr{
			Cloneflags: namespaces, UidMappings: uids, GidMappings: gids, GidMappingsEnableSetgroups: i.Base != 0,
			Setsid: true, AmbientCaps: ambient(), PidFD: &pidfd,
		},
	})
	if err != nil {
		return nil, errors.Join(b.forkError(err), config.Close(), status.Close())
	}
	reap(pid, pidfd)
	if err := settleScore(pid); err != nil {
		return nil, errors.Join(failed("setting the OOM score", err), config.Close(), status.Close())
	}
	return &launching{pid: pid, config: config, status: status, own: b.dirs.root}, nil
}

// configure sends the configuration. The launcher builds the sandbox and then waits for release.
func (l *launching) configure(c *launch.Config) error {
	l.trees = c.Trees
	b, err := json.Marshal(c)
	if err == nil {
		_, err = l.config.Write(b)
	}
	if errors.Is(err, unix.EPIPE) { // the launcher has exited and reported the reason
		return nil
	}
	return failed("configuring the sandbox", err)
}

// release makes the launcher finish and waits for it. If ctx ends, the launcher exits.
func (l *launching) release(ctx context.Context) error {
	if _, err := l.config.Write([]byte{'\n'}); err != nil && !errors.Is(err, unix.EPIPE) {
		return failed("releasing the sandbox", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.status.Close() })
	said, err := io.ReadAll(io.LimitReader(l.status, 64<<10))
	if !stop() {
		return ended(ctx)
	}
	if err != nil {
		return failed("waiting for the sandbox", err)
	}
	return l.explain(said)
}

// close releases a launcher. If release was not called, the launcher exits.
func (l *launching) close() { _ = errors.Join(l.config.Close(), l.status.Close()) } // the other ends may be closed

// explain returns the error for the output of a launcher.
func (l *launching) explain(said []byte) error {
	dec := json.NewDecoder(bytes.NewReader(said))
	for n := 0; ; n++ {
		var r launch.Report
		switch err := dec.Decode(&r); {
		case errors.Is(err, io.EOF) && n == 0:
			return fmt.Errorf("local: the sandbox's process exited during setup: %w", backend.ErrLost)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("local: unexpected response from the launcher: %w", backend.ErrProtocol)
		case r.Isolation != "":
			return l.reportError(r)
		}
	}
}
