# Takes as many descriptors of a kind as can be had, says how many that were and why no more, and holds on to all of them:
# for as many seconds as it is told, else for ten minutes.
import ctypes, errno, os, select, sys, time

libc = ctypes.CDLL(None, use_errno=True)


def inotify():
    fd = libc.inotify_init1(0)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    return fd


take = {"files": lambda: os.open("/proc/self/status", os.O_RDONLY), "epoll": select.epoll, "inotify": inotify}[sys.argv[1]]
kept = []
try:
    while True:
        kept.append(take())
except OSError as e:
    os.write(1, f"{len(kept)} {errno.errorcode[e.errno]}\n".encode())
time.sleep(int(sys.argv[2]) if len(sys.argv) > 2 else 600)
