package proc

import (
	"os"
	"os/signal"
	"strings"
	"unsafe"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// catchSignals makes all signals from commands harmless. It catches the signals instead of ignoring them, because
// commands would inherit ignored signals.
func catchSignals() {
	c := make(chan os.Signal, 16)
	signal.Notify(c, fatalSignals()...)
	go func() {
		for range c { // keeps the channel from filling up
		}
	}()
	catchUnhandled()
}

// fatalSignals returns the signals ending or stopping a Go program unless it catches them. The Go runtime handles and
// ignores all other signals, except unhandledSignals. Catching more signals would do no harm, but each signal costs two
// thread switches at the start of a sandbox.
func fatalSignals() []os.Signal {
	return []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGPIPE, // end the program
		unix.SIGQUIT, unix.SIGABRT, unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, // crash it
		unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS,
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, // stop the program if it is not an init process
	}
}

// unhandledSignals are signals reserved by Go for C libraries. Package os/signal cannot catch them.
var unhandledSignals = [...]int{32, 34}

// sigaction is the kernel's struct sigaction on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// returnAtOncePC is the address of an empty assembly signal handler.
var returnAtOncePC uintptr

// catchUnhandled catches the signals not handled by Go. The kernel drops a signal without a handler to a namespace's
// init process, but not while the main thread blocks the signal. The main thread blocks it during another signal's
// handler and during a fork. A second thread receiving the signal would then end the whole process.
func catchUnhandled() {
	var act sigaction
	rtSigaction(int(unix.SIGUSR1), nil, &act) // copies the flags and the restorer of Go's handler
	act.handler = returnAtOncePC
	for _, sig := range unhandledSignals {
		rtSigaction(sig, &act, nil)
	}
}

// rtSigaction sets a signal handler. It cannot fail for an existing signal.
func rtSigaction(sig int, act, old *sigaction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(act)),
		uintptr(unsafe.Pointer(old)), unsafe.Sizeof(act.mask), 0, 0)
}

// ParseSignal parses the name of a standard signal, for example SIGINT or int.
func ParseSignal(name string) (unix.Signal, error) {
	full := strings.ToUpper(name)
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	sig := unix.SignalNum(full)
	if sig <= 0 || sig >= 32 {
		return 0, wire.Errorf(wire.CodeInvalid, "unknown signal %.20q", name)
	}
	return sig, nil
}

// SignalName returns the name of a signal with the prefix SIG.
func SignalName(sig unix.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return "SIGRT"
}
