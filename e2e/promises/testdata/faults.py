# Sends the main process the signals of faults as the kernel would: with siginfo, and by a file that is ready.
import ctypes, fcntl, os, platform, socket

queue, tgqueue = {"x86_64": (129, 297), "aarch64": (138, 240)}[platform.machine()]
call = ctypes.CDLL(None, use_errno=True).syscall
for sig in (4, 5, 7, 8, 11, 16, 31):
    info = (ctypes.c_int * 32)(sig, 0, -1)
    got = [call(queue, 1, sig, info), call(tgqueue, 1, 1, sig, info), call(424, os.pidfd_open(1), sig, info, 0)]
    a, b = socket.socketpair()
    fcntl.fcntl(a, fcntl.F_SETOWN, 1)
    try:
        fcntl.fcntl(a, 10, sig)  # F_SETSIG
    except PermissionError:
        got.append(-1)
    fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    b.send(b"x")
    assert got == [-1, -1, -1, -1], (sig, got)
fcntl.fcntl(a, 10, 10)  # other signals may be chosen
with open("leased", "w") as f:  # a lease would delay the start of a program in the file
    for cmd in (fcntl.F_SETLEASE, 1040):  # F_SETDELEG
        try:
            fcntl.fcntl(f, cmd, fcntl.F_WRLCK)
            raise SystemExit("a lease was granted")
        except PermissionError:
            pass
