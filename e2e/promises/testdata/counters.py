# counters.py KIND [SECONDS [MOST]]: takes as much of a resource of the kernel as possible, prints how much it got and the
# error that ended it, and holds all of it, for ten minutes by default.
import ctypes, errno, fcntl, os, platform, select, signal, socket, sys, time

libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"


def call(*args):
    got = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if got < 0:
        raise OSError(ctypes.get_errno(), "system call")
    return got


def pipe():
    ends = os.pipe()
    fcntl.fcntl(ends[0], 1031, 1 << 20)  # F_SETPIPE_SZ
    return ends


def passed():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, bytes(4 * 250))])  # standard input, 250 times
    return a, b


info, timer = (ctypes.c_int * 32)(40, 0, -1), ctypes.c_int()
signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 64))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
take = {
    "files": lambda: os.open("/proc/self/status", os.O_RDONLY),
    "epoll": select.epoll,
    "inotify": lambda: call(26 if arm else 294, 0),
    "terminals": os.openpty,
    "asynchronous I/O": lambda: call(0 if arm else 206, 32768, ctypes.byref(ctypes.c_ulong())),
    "signals": lambda: call(138 if arm else 129, os.getpid(), 40, info),
    "timers": lambda: call(107 if arm else 222, 0, None, ctypes.byref(timer)),
    "pipes": pipe,
    "descriptors on their way": passed,
    "shared memory": lambda: call(194 if arm else 29, 0, 4096, 0o1600),
    "semaphores": lambda: call(190 if arm else 64, 0, 1, 0o1600),
    "message queues": lambda: call(186 if arm else 68, 0, 0o1600),
    "POSIX message queues": lambda: call(180 if arm else 240, b"q%d" % len(kept), 0o102, 0o600, None),
    "keys": lambda: call(217 if arm else 248, b"user", b"k%d" % len(kept), b"x", 1, -3),
    "connections": lambda: udp.sendto(b"x", ("192.0.2.1", 1 + len(kept))),
}[sys.argv[1]]
most = int(sys.argv[3]) if len(sys.argv) > 3 else 1 << 30
kept, why = [], "enough"
try:
    while len(kept) < most:
        kept.append(take())
except OSError as e:
    why = errno.errorcode[e.errno]
os.write(1, f"{len(kept)} {why}\n".encode())
time.sleep(int(sys.argv[2]) if len(sys.argv) > 2 else 600)
