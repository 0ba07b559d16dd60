# Prints what a command can find out about the privileges that it runs with.
import json, os, sys


def read(path, size=1 << 20):
    try:
        with open(path, "rb") as f:
            return f.read(size).decode("utf-8", "replace")
    except OSError as e:
        return "error: " + e.strerror


def status(pid):
    fields = dict(line.split(":\t", 1) for line in read("/proc/%s/status" % pid).splitlines() if ":\t" in line)
    return {k: v.strip() for k, v in fields.items()}


def masked(path):
    """Tells how much of a file or directory is to be seen."""
    try:
        if os.path.isdir(path):
            return len(os.listdir(path))
        return len(read(path, 4096)) if not read(path, 1).startswith("error") else 0
    except OSError:
        return 0


def writable(path):
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(fd, read(path, 4096).encode() or b"0")
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def tree(top, limit=4000):
    found = []
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            if len(found) < limit and writable(path):
                found.append(path)
    return found


def made(path):
    try:
        os.mkdir(path)
        return True
    except OSError:
        return False


mounts = []
for line in read("/proc/self/mountinfo").splitlines():
    left, right = line.split(" - ")
    left, right = left.split(), right.split()
    mounts.append({"root": left[3], "at": left[4], "options": left[5], "tags": left[6:], "type": right[0], "source": right[1]})

fds = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        where = os.readlink("/proc/self/fd/" + fd)
    except OSError:
        continue
    if not where.startswith("/proc/"):  # the listing itself
        fds[fd] = where

kernel = ["/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
          "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches", "/proc/sys/vm/panic_on_oom", "/proc/sys/net/ipv4/ip_forward",
          "/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/randomize_va_space", "/proc/mtrr", "/proc/self/uid_map", "/proc/kmsg",
          "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled", "/dev/kmsg", "/dev/mem"]
hidden = ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/acpi", "/proc/scsi", "/proc/sched_debug", "/proc/latency_stats",
          "/proc/timer_stats", "/proc/interrupts", "/proc/asound", "/sys/firmware", "/sys/devices/virtual/powercap",
          "/sys/devices/system/cpu/cpu0/thermal_throttle"]
json.dump({
    "self": status("self"), "init": status("1"), "mounts": mounts, "fds": fds,
    "limits": read("/proc/self/limits"), "devices": sorted(os.listdir("/dev")),
    "namespaces": {n: os.readlink("/proc/self/ns/" + n) for n in os.listdir("/proc/self/ns")},
    "masked": {p: masked(p) for p in hidden},
    "writable": [p for p in kernel if writable(p)] + tree("/proc/sys") + tree("/sys/fs/cgroup"),
    "made": [p for p in ("/sys/fs/cgroup/x", "/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/pids/x", "/proc/x", "/sys/x", "/sys/kernel/x") if made(p)],
    "sockets": [os.path.join(d, n) for d in ("/run", "/var/run", "/tmp", "/dev", "/etc", "/root", "/home", "/mnt", "/srv")
                for n in (os.listdir(d) if os.access(d, os.R_OK) and os.path.isdir(d) else []) if "sock" in n],
    "setuid": [p for top in ("/usr", "/bin", "/sbin", "/opt") for p in
               (os.path.join(d, n) for d, _, ns in os.walk(top) for n in ns)
               if not os.path.islink(p) and os.stat(p).st_mode & 0o6000],
}, sys.stdout)
