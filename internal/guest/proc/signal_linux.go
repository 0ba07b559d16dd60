package proc

import (
	"os"
	"os/signal"
	"strings"
	"unsafe"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// catchSignals makes every signal that a command may send harmless. They are caught, not ignored, because commands
// would inherit that they are ignored.
func catchSignals() {
	c := make(chan os.Signal, 16)
	signal.Notify(c, fatalSignals()...)
	go func() {
		for range c { // drained only so that the channel stays small
		}
	}()
	catchUnhandled()
}

// fatalSignals are those that end a Go program, or stop it, unless it catches them. The runtime takes all others but
// the unhandled ones itself and passes them over. To catch those too would do no harm, but every one costs the start of
// a sandbox two changes of thread.
func fatalSignals() []os.Signal {
	return []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGPIPE, // end it
		unix.SIGQUIT, unix.SIGABRT, unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS, // crash it
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, // stop it, where it is not an init
	}
}

// unhandledSignals are those that Go leaves to C libraries, which lets package os/signal not catch them either.
var unhandledSignals = [...]int{32, 34}

// sigaction is the kernel's struct of this name, on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// returnAtOncePC is the address of a handler that does nothing, in assembly.
var returnAtOncePC uintptr

// catchUnhandled catches the signals that Go does not. The kernel drops a signal to the init of a namespace that has no
// handler for it only as long as the main thread does not block it, which it does while it handles another one or
// forks: then a second thread that takes the signal ends the whole process.
func catchUnhandled() {
	var act sigaction
	rtSigaction(int(unix.SIGUSR1), nil, &act) // a handler of Go's, for the flags and the way back that the runtime needs
	act.handler = returnAtOncePC
	for _, sig := range unhandledSignals {
		rtSigaction(sig, &act, nil)
	}
}

// rtSigaction cannot fail for a signal that exists.
func rtSigaction(sig int, act, old *sigaction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(act.mask), 0, 0)
}

// ParseSignal takes a standard signal's name, with or without SIG.
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

// SignalName returns a signal's name with SIG.
func SignalName(sig unix.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return "SIGRT"
}
