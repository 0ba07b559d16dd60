"""Looks around in a sandbox, tries what must be denied, and prints what came of it as JSON."""
import ctypes
import errno
import json
import os
import platform
import resource
import socket

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
NR = {
    "bpf": 321 if X86 else 280,
    "perf_event_open": 298 if X86 else 241,
    "keyctl": 250 if X86 else 219,
    "add_key": 248 if X86 else 217,
    "kexec_load": 246 if X86 else 104,
    "init_module": 175 if X86 else 105,
    "userfaultfd": 323 if X86 else 282,
    "open_by_handle_at": 304 if X86 else 265,
    "setns": 308 if X86 else 268,
    "pivot_root": 155 if X86 else 41,
    "clone3": 435,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "process_vm_readv": 310 if X86 else 270,
    "fsopen": 430,
    "open_tree": 428,
    "move_mount": 429,
    "mount_setattr": 442,
    "quotactl": 179 if X86 else 60,
    "acct": 163 if X86 else 89,
    "syslog": 103 if X86 else 116,
    "lookup_dcookie": 212 if X86 else 18,
    "fanotify_init": 300 if X86 else 262,
    "request_key": 249 if X86 else 218,
    "finit_module": 313 if X86 else 273,
    "delete_module": 176 if X86 else 106,
    "kexec_file_load": 320 if X86 else 294,
}


def call(name, *args):
    """Gives the errno's name of a raw system call, or "ok"."""
    ctypes.set_errno(0)
    res = libc.syscall(NR[name], *args)
    return "ok" if res >= 0 else errno.errorcode[ctypes.get_errno()]


def attempt(f):
    try:
        r = f()
        return "ok" if r is None else str(r)
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))


def lib(name, *args):
    ctypes.set_errno(0)
    res = getattr(libc, name)(*args)
    return "ok" if res >= 0 else errno.errorcode[ctypes.get_errno()]


def write(path):
    def f():
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)

    return attempt(f)


def create(path):
    def f():
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.close(fd)
        os.unlink(path)

    return attempt(f)


def size(path):
    """What can be read: "absent", a number of bytes or entries, or an errno."""
    try:
        if os.path.isdir(path):
            return len(os.listdir(path))
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return len(os.read(fd, 4096))
        finally:
            os.close(fd)
    except FileNotFoundError:
        return "absent"
    except OSError as e:
        return errno.errorcode[e.errno]


def sock(family, kind, proto=0):
    return attempt(lambda: socket.socket(family, kind, proto).close())


status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
mounts = []
for line in open("/proc/self/mountinfo"):
    left, right = line.split(" - ")
    f, r = left.split(), right.split()
    mounts.append({"root": f[3], "at": f[4], "opts": f[5].split(","), "shared": any(x.startswith("shared") for x in f[6:]),
                   "type": r[0], "source": r[1]})

buf = ctypes.create_string_buffer(8)
iov = (ctypes.c_ulong * 2)(ctypes.addressof(buf), 8)
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET = 0x10000000, 0x20000, 0x40000000
limit = lambda r: list(resource.getrlimit(r))
setuid = [os.path.join(d, n) for top in ("/usr", "/bin", "/sbin") for d, _, ns in os.walk(top) for n in ns
          if not os.path.islink(os.path.join(d, n)) and os.stat(os.path.join(d, n)).st_mode & 0o6000]
out = {
    "status": {k: v.strip() for k, v in status.items()},
    "uid": [os.getuid(), os.geteuid(), os.getgid(), os.getegid()],
    "groups": os.getgroups(),
    "fds": sorted(int(x) for x in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + x)),
    "mounts": mounts,
    "namespaces": {n: os.readlink("/proc/self/ns/" + n) for n in ("pid", "ipc", "net", "uts", "mnt", "cgroup", "user")},
    "pids": len([p for p in os.listdir("/proc") if p.isdigit()]),
    "hostname": socket.gethostname(),
    "devices": sorted(os.listdir("/dev")),
    "setuid": setuid,
    "limits": {"core": limit(resource.RLIMIT_CORE), "nofile": limit(resource.RLIMIT_NOFILE), "fsize": limit(resource.RLIMIT_FSIZE)},
    "masked": {p: size(p) for p in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/acpi", "/proc/scsi", "/proc/sched_debug",
                                    "/sys/firmware", "/proc/latency_stats", "/proc/timer_stats", "/proc/interrupts", "/proc/asound",
                                    "/sys/devices/virtual/powercap", "/sys/devices/system/cpu/cpu0/thermal_throttle")},
    "sockets": [p for p in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/var/lib/docker",
                            "/run/containerd", "/run/docker", "/var/lib/containerd", "/host", "/root/.docker") if os.path.lexists(p)],
    "guest": {
        "environ": size("/proc/1/environ"), "mem": attempt(lambda: os.close(os.open("/proc/1/mem", os.O_RDWR))),
        "fd": attempt(lambda: len(os.listdir("/proc/1/fd"))), "binary": write("/.workcell/workcell-guest"),
    },
    "write": {p: write(p) for p in (
        "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max",
        "/proc/sys/net/ipv4/ip_forward", "/proc/irq/default_smp_affinity", "/etc/passwd")},
    "create": {p: create(p) for p in ("/x", "/etc/x", "/usr/bin/x", "/root/x", "/var/x", "/.workcell/x", "/sys/fs/cgroup/x", "/proc/x",
                                      "/workspace/x", "/tmp/x", "/dev/shm/x")},
    "calls": {
        "mount": lib("mount", b"none", b"/tmp", b"tmpfs", 0, None), "umount": lib("umount2", b"/tmp", 2),
        "unshare user": lib("unshare", CLONE_NEWUSER), "unshare mount": lib("unshare", CLONE_NEWNS), "unshare net": lib("unshare", CLONE_NEWNET),
        "chroot": attempt(lambda: os.chroot("/tmp")), "setuid": attempt(lambda: os.setuid(0)), "setgid": attempt(lambda: os.setgid(0)),
        "mknod": attempt(lambda: os.mknod("/tmp/null", 0o600 | 0o020000, os.makedev(1, 3))),
        "chown": attempt(lambda: (open("/tmp/own", "w").close(), os.chown("/tmp/own", 0, 0))[1]),
        "keyctl": call("keyctl", 0, -3, 0, 0, 0), "add_key": call("add_key", b"user", b"x", b"y", 1, -3),
        "bpf": call("bpf", 0, None, 0), "perf": call("perf_event_open", None, 0, -1, -1, 0), "kexec": call("kexec_load", 0, 0, None, 0),
        "module": call("init_module", None, 0, b""), "userfaultfd": call("userfaultfd", 0), "by handle": call("open_by_handle_at", -100, None, 0),
        "io_uring_setup": call("io_uring_setup", 1, ctypes.create_string_buffer(120)), "io_uring_enter": call("io_uring_enter", 0, 0, 0, 0, None, 0),
        "io_uring_register": call("io_uring_register", 0, 0, None, 0),
        "read guest's memory": call("process_vm_readv", 1, iov, 1, iov, 1, 0), "ptrace attach": lib("ptrace", 0x4206, 1, None, None),
        "fsopen": call("fsopen", b"tmpfs", 0), "open_tree": call("open_tree", -100, b"/", 1), "move_mount": call("move_mount", -100, b"/", -100, b"/tmp", 0),
        "mount_setattr": call("mount_setattr", -100, b"/", 0, None, 0), "quotactl": call("quotactl", 0x80000100, None, 0, None),
        "acct": call("acct", None), "syslog": call("syslog", 3, ctypes.create_string_buffer(16), 16), "dcookie": call("lookup_dcookie", 0, None, 0),
        "fanotify": call("fanotify_init", 0, 0), "request_key": call("request_key", b"user", b"x", None, 0),
        "finit_module": call("finit_module", -1, b"", 0), "delete_module": call("delete_module", b"x", 0), "kexec_file": call("kexec_file_load", -1, -1, 0, None, 0),
        "setns": call("setns", 0, 0), "pivot_root": call("pivot_root", b"/", b"/"), "clone3": call("clone3", None, 0),
        "ptrace guest": lib("ptrace", 16, 1, None, None), "nice": lib("setpriority", 0, 0, -5), "sethostname": lib("sethostname", b"x", 1),
        "reboot": lib("reboot", 0), "swapon": lib("swapon", b"/tmp/x", 0), "settime": lib("settimeofday", ctypes.c_char_p(b"\0" * 16), None),
        "kill all": attempt(lambda: os.kill(1, 9)) and "ok",
    },
    "net": {
        "raw": sock(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP), "packet": sock(17, socket.SOCK_RAW, 3),
        "vsock": sock(40, socket.SOCK_STREAM), "alg": sock(38, socket.SOCK_SEQPACKET),
        "interfaces": [n for _, n in socket.if_nameindex()], "routes": len(open("/proc/net/route").readlines()) - 1,
        "routes6": [l.split()[9] for l in open("/proc/net/ipv6_route")] if os.path.exists("/proc/net/ipv6_route") else [],
        "abstract": [l.split()[7] for l in open("/proc/net/unix").readlines()[1:] if len(l.split()) > 7],
    },
}
print(json.dumps(out))
