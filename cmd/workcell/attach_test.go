//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// commandIsOver is shown when a window's command has ended.
const commandIsOver = "\x00over\x00"

// window is a user's terminal with a running command.
type window struct {
	t      *testing.T
	master *os.File // user's end
	tty    *os.File // command's end; kept open to check the mode after the end
	found  unix.Termios
	cmd    *exec.Cmd
	over   chan struct{} // closed when the command has ended
	shown  string        // output not awaited yet
	more   chan string
}

// openWindow starts the command on a terminal with 30 rows and 100 columns.
func openWindow(u user, args ...string) *window {
	u.t.Helper()
	w := &window{t: u.t, over: make(chan struct{}), more: make(chan string, 1<<10)}
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	w.check(err)
	w.master = os.NewFile(uintptr(master), "terminal")
	w.check(unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	w.check(err)
	w.tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	w.check(err)
	w.resize(30, 100)
	w.found = w.mode()

	w.cmd = u.command(args...)
	w.cmd.Env = append(w.cmd.Env, "TERM=xterm-test")
	w.cmd.Stdin, w.cmd.Stdout, w.cmd.Stderr = w.tty, w.tty, w.tty
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	w.check(w.cmd.Start())
	go w.read()
	go func() {
		_ = w.cmd.Wait()                        // the test checks the process state
		_, _ = w.tty.WriteString(commandIsOver) // written after all output of the command
		close(w.over)
	}()
	timer := time.AfterFunc(5*time.Minute, func() { _ = w.cmd.Process.Kill() })
	u.t.Cleanup(func() {
		timer.Stop()
		_ = w.cmd.Process.Kill() // already ended, unless the test failed
		<-w.over
		_, _ = w.tty.Close(), w.master.Close()
	})
	return w
}

func (w *window) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// read passes on the terminal's output until the terminal is closed.
func (w *window) read() {
	buf := make([]byte, 4096)
	for {
		n, err := w.master.Read(buf)
		if err != nil {
			return
		}
		select {
		case w.more <- string(buf[:n]):
		case <-w.t.Context().Done():
		}
	}
}

func (w *window) resize(rows, cols uint16) {
	w.t.Helper()
	w.check(unix.IoctlSetWinsize(int(w.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}))
}

func (w *window) mode() unix.Termios {
	w.t.Helper()
	mode, err := unix.IoctlGetTermios(int(w.tty.Fd()), unix.TCGETS)
	w.check(err)
	return *mode
}

// enter types keys and waits until the terminal shows a text.
func (w *window) enter(keys, shows string) {
	w.t.Helper()
	_, err := w.master.WriteString(keys)
	w.check(err)
	w.await(shows)
}

// await consumes the terminal's output up to text.
func (w *window) await(text string) {
	w.t.Helper()
	for !strings.Contains(w.shown, text) {
		if strings.Contains(w.shown, commandIsOver) {
			w.t.Fatalf("%q is not shown:\n%s", text, w.shown)
		}
		w.shown += <-w.more
	}
	_, w.shown, _ = strings.Cut(w.shown, text)
}

// ends waits for the end of the command. The command must restore the terminal's original mode.
func (w *window) ends(code int) {
	w.t.Helper()
	<-w.over
	if got := w.cmd.ProcessState.ExitCode(); got != code {
		w.t.Errorf("exit code %d, want %d:\n%s", got, code, w.shown)
	}
	if diff := cmp.Diff(w.found, w.mode()); diff != "" {
		w.t.Errorf("the terminal was left as it was not found (-want +got):\n%s", diff)
	}
}

// TestAttach verifies the use of a sandbox on a real terminal, on each backend.
func TestAttach(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"docker", "containerd", "local"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUser(t, name)
			u.run(0, "sandbox", "open", "--name", "box", "--image", "debian:bookworm-slim")
			atShell(u)
			atPrograms(u)
			cutOff(u)
		})
	}
}

// atShell starts a shell, disconnects, and connects again.
func atShell(u user) {
	w := openWindow(u, "sandbox", "attach", "box", "--detach-keys", "ctrl-x,d")
	w.enter("tty; stty size; echo $TERM $((40+2))\n", "/dev/pts/0\r\n30 100\r\nxterm-test 42\r\n")
	w.resize(41, 101)
	w.enter("until stty size | grep 41; do sleep 0.02; done; echo resized $((40+3))\n", "41 101\r\nresized 43\r\n")
	// Terminal keys work in the sandbox: interrupt and stop. The shell supports jobs.
	w.enter("sh -c 'echo asleep $((40+4)); exec sleep 1000'\n", "asleep 44\r\n")
	w.enter("\x03echo status $?\n", "status 130\r\n")
	w.enter("sh -c 'echo asleep $((40+5)); exec sleep 1000'\n", "asleep 45\r\n")
	w.enter("\x1a", "Stopped")
	w.enter("case $- in *m*) echo jobs $((40+6));; esac; kill -KILL %1\n", "jobs 46\r\n")
	w.enter("kept=$((40+6)); echo kept $kept\n", "kept 46\r\n")
	w.enter("\x18d", "workcell: detached; to attach again, run: workcell sandbox attach box\r\n")
	w.ends(0)

	w = openWindow(u, "sandbox", "attach", "box")
	w.await("kept 46\r\n") // the screen is redrawn
	w.enter("echo still $kept; stty size\n", "still 46\r\n30 100\r\n")
	w.check(w.cmd.Process.Signal(syscall.SIGTERM))
	w.ends(143)

	w = openWindow(u, "sandbox", "attach", "box")
	w.enter("echo once more $kept\n", "once more 46\r\n")
	w.enter("exit 9\nexit 9\n", "exit")
	w.ends(9)
}

// atPrograms runs specified programs, and copies a file with control characters to the terminal.
func atPrograms(u user) {
	w := openWindow(u, "sandbox", "attach", "-u", "1000", "-w", "/tmp", "-e", "GREETING=hello", "box", "--", "sh", "-c", "pwd; echo $GREETING; stty size; kill -KILL $$")
	w.await("/tmp\r\nhello\r\n30 100\r\n")
	w.ends(137)
	w = openWindow(u, "sandbox", "attach", "box", "no-such-program")
	w.await("hint: specify a program that exists in the sandbox")
	w.ends(127)
	u.run(0, "sandbox", "exec", "box", "--", "sh", "-c", `printf '\033[2Jx' >/tmp/f`)
	w = openWindow(u, "sandbox", "cp", "box:/tmp/f", "-")
	w.await(`\x1b[2Jx`)
	w.ends(0)
}

// cutOff removes a sandbox while a terminal is connected to it.
func cutOff(u user) {
	w := openWindow(u, "sandbox", "attach", "box", "--", "sh", "-c", "echo ready; exec sleep 1000")
	w.await("ready\r\n")
	u.run(0, "sandbox", "rm", "box")
	w.ends(125)
}
