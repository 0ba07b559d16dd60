package proc

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal. The guest has two descriptors of its end, one to read and one to write, which are
// closed separately.
func (e *ends) openTerminal(size wire.TerminalSize) error {
	// Without O_NOCTTY it would become the controlling terminal of the guest, which leads a session too.
	out, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return terminalError("opening /dev/ptmx", err)
	}
	e.own = append(e.own, out)
	child, err := otherEnd(out)
	if err != nil {
		return err
	}
	e.made = append(e.made, child)
	in, err := unix.FcntlInt(uintptr(out), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return launchError(err, "terminal")
	}
	e.own = append(e.own, in)
	e.files, e.terminal, e.in, e.out[0] = [3]int{child, child, child}, true, in, out
	// Backspace takes away a character, not a byte of it. A kernel that does not know how still has a terminal.
	if t, err := unix.IoctlGetTermios(child, unix.TCGETS); err == nil {
		t.Iflag |= unix.IUTF8
		_ = unix.IoctlSetTermios(child, unix.TCSETS, t)
	}
	if err := setSize(in, size); err != nil {
		return terminalError("setting its size", err)
	}
	return nil
}

// otherEnd opens the child's end of a terminal: through the guest's own where the kernel can, so that no name is
// followed which a command could have put there.
func otherEnd(master int) (int, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, terminalError("unlocking it", err)
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if e == 0 {
		return int(r), nil
	}
	if e != unix.EINVAL && e != unix.ENOTTY { // which say that there is no such call
		return -1, terminalError("opening its other end", e)
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return -1, terminalError("asking for its number", err)
	}
	child, err := unix.Open("/dev/pts/"+strconv.Itoa(n), flags, 0)
	if err != nil {
		return -1, terminalError("opening its other end", err)
	}
	return child, nil
}

// terminalError distinguishes a sandbox without terminals from one that has no room for another.
func terminalError(what string, err error) error {
	if isShortage(err) || errors.Is(err, unix.ENOSPC) {
		return launchFail(NoResources, "no free pseudo-terminal: %s: %v", what, err)
	}
	return wire.Errorf(wire.CodeUnsupported, "the sandbox has no terminals: %s: %v", what, err)
}

func setSize(fd int, size wire.TerminalSize) error {
	if size.Rows == 0 && size.Cols == 0 {
		return nil // not known: it stays as it is
	}
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}

// Resize sets the size of a command's terminal, of which the programs in front learn. With redraw they learn of it also
// when it is the size that the terminal has, and draw their screen again.
func (in *InputPipe) Resize(size wire.TerminalSize, redraw bool) error {
	raw, err := in.f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		now, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ)
		if redraw && err == nil && now.Row == size.Rows && now.Col == size.Cols && size.Rows > 1 {
			_ = setSize(int(fd), wire.TerminalSize{Rows: size.Rows - 1, Cols: size.Cols}) // the one below reports it
		}
		failed = setSize(int(fd), size)
	})
	return errors.Join(err, failed)
}

// findShell returns the program for a terminal for which none was named: $SHELL, else the login shell of the user, else
// the first of the usual ones.
func findShell(dir string, env []string) (string, error) {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "SHELL="); ok && filepath.IsAbs(v) && isShell(v) {
			return v, nil
		}
	}
	if shell := loginShell(passwdFile, os.Getuid()); shell != "" && isShell(shell) {
		return shell, nil
	}
	for _, name := range []string{"bash", "zsh", "ash", "sh"} {
		if path, err := lookPath(name, dir, env); err == nil {
			return path, nil
		}
	}
	return "", launchFail(launchNotFound, "no shell found in the sandbox: tried $SHELL, the user's shell in /etc/passwd, bash, zsh, ash, and sh")
}

// passwdFile is where the image has its users; maxPasswd is how much of it is read.
const (
	passwdFile = "/etc/passwd"
	maxPasswd  = 1 << 20
)

// loginShell returns the shell that a file of users has for uid; empty when it has none, or sh, which is what programs
// that add users fill in.
func loginShell(path string, uid int) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // nobody knows what a command made of it
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // only read
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	for lines := bufio.NewScanner(io.LimitReader(f, maxPasswd)); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) != 7 || fields[2] != strconv.Itoa(uid) {
			continue
		}
		if shell := fields[6]; filepath.IsAbs(shell) && filepath.Base(shell) != "sh" {
			return shell
		}
		return ""
	}
	return ""
}

// isShell reports whether a program is there and not one that stands for "no shell".
func isShell(path string) bool {
	if base := filepath.Base(path); base == "nologin" || base == "false" {
		return false
	}
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil
}
