package gather

import (
	"time"

	"golang.org/x/sys/unix"
)

// pause sleeps in the kernel: the runtime's own timers are up to a millisecond late in a process that has nothing else to do.
// A signal may end it early, which does no harm.
func pause(d time.Duration) {
	t := unix.NsecToTimespec(d.Nanoseconds())
	_ = unix.Nanosleep(&t, nil)
}
