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

// openTerminal creates a terminal. The guest agent's end has two descriptors, for reading and writing, which are closed
// separately.
func (e *ends) openTerminal(size wire.TerminalSize) error {
	// Without O_NOCTTY, the terminal would become the controlling terminal of the guest agent, which is also a session
	// leader.
	out, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return terminalError("opening /dev/ptmx", err)
	}
	e.own = append(e.own, out)
	child, err := otherEnd(out)
	if err != nil {
		return terminalError("opening its other end", err)
	}
	e.made = append(e.made, child)
	in, err := unix.FcntlInt(uintptr(out), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return launchError(err, "terminal")
	}
	e.own = append(e.own, in)
	e.files, e.terminal, e.in, e.out[0] = [3]int{child, child, child}, true, in, out
	// With IUTF8, backspace removes a character and not a byte. A kernel without this flag still provides a terminal.
	if t, err := unix.IoctlGetTermios(child, unix.TCGETS); err == nil {
		t.Iflag |= unix.IUTF8
		_ = unix.IoctlSetTermios(child, unix.TCSETS, t)
	}
	if err := setSize(in, size); err != nil {
		return terminalError("setting its size", err)
	}
	return nil
}

// otherEnd opens the child's end of a terminal. If the kernel supports it, otherEnd uses the guest agent's descriptor,
// to avoid following a path changed by a command.
func otherEnd(master int) (int, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, err
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if e == 0 {
		return int(r), nil
	}
	if e != unix.EINVAL && e != unix.ENOTTY { // the kernel does not support the call
		return -1, e
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return -1, err
	}
	return unix.Open("/dev/pts/"+strconv.Itoa(n), flags, 0)
}

// terminalError distinguishes a sandbox without terminals from a sandbox without a free terminal.
func terminalError(what string, err error) error {
	if isShortage(err) || errors.Is(err, unix.ENOSPC) {
		return launchFail(NoResources, "no free pseudo-terminal: %s: %v", what, err)
	}
	return wire.Errorf(wire.CodeUnsupported, "the sandbox has no terminals: %s: %v", what, err)
}

func setSize(fd int, size wire.TerminalSize) error {
	if size.Rows == 0 && size.Cols == 0 {
		return nil // unknown: keep the current size
	}
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}

// Resize sets the size of a command's terminal. The kernel notifies the foreground programs. If redraw is set, the
// programs are notified even if the size is unchanged, to let them redraw the screen.
func (in *InputPipe) Resize(size wire.TerminalSize, redraw bool) error {
	raw, err := in.f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		now, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ)
		if redraw && err == nil && now.Row == size.Rows && now.Col == size.Cols && size.Rows > 1 {
			_ = setSize(int(fd), wire.TerminalSize{Rows: size.Rows - 1, Cols: size.Cols}) // the call below reports errors
		}
		failed = setSize(int(fd), size)
	})
	return errors.Join(err, failed)
}

// findShell returns the program for a terminal without a command: $SHELL, or the login shell of the user, or the first
// available common shell.
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
	return "", launchFail(launchNotFound,
		"no shell found in the sandbox: tried $SHELL, the user's shell in /etc/passwd, bash, zsh, ash, and sh")
}

// passwdFile is the user database of the image. maxPasswd is the maximum number of bytes to read from it.
const (
	passwdFile = "/etc/passwd"
	maxPasswd  = 1 << 20
)

// loginShell returns the shell of the user uid in a passwd file. It returns an empty string if the file has no shell
// for the user, or if the shell is sh, the default of programs for creating users.
func loginShell(path string, uid int) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a command may have replaced the file
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

// isShell reports whether a program exists and is not a placeholder for "no shell".
func isShell(path string) bool {
	if base := filepath.Base(path); base == "nologin" || base == "false" {
		return false
	}
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil
}
