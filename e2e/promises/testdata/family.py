# Leaves children of every kind behind and then waits, or ends at once when the third argument says so. Each child
# counts in a file of its own for as long as it lives.
#
#   family.py DIRECTORY MARK wait|leave
import os, signal, sys, time

directory, mark, ending = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3]
BEAT = """
import os, signal, sys, time
if sys.argv[3] == "deaf":
    for s in range(1, 65):
        try: signal.signal(s, signal.SIG_IGN)
        except (OSError, ValueError): pass
n = 0
while True:
    n += 1
    with open(sys.argv[2] + ".new", "w") as f: f.write(str(n))
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    time.sleep(0.03)
"""


def beat(name, hearing="hears", env=None):
    argv = ["python3", "-c", BEAT, mark, os.path.join(directory, name), hearing]
    path = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else "/usr/local/bin/python3"
    os.execve(path, argv, os.environ if env is None else env)


def forked(run):
    if os.fork() == 0:
        try:
            run()
        finally:
            os._exit(1)


def daemon(run):
    def middle():
        os.setsid()
        forked(run)
        os._exit(0)
    forked(middle)


def quiet():
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def detached():
    quiet()
    os.setpgid(0, 0)
    beat("group", "deaf", {})


def grandchild():
    forked(lambda: beat("grandchild"))
    time.sleep(600)


forked(lambda: beat("child"))
forked(grandchild)
forked(lambda: (os.setsid(), beat("setsid")))
daemon(lambda: beat("daemon"))
daemon(lambda: (quiet(), beat("quiet-daemon", "deaf")))
daemon(lambda: (quiet(), beat("bare-daemon", "deaf", {})))
daemon(lambda: daemon(lambda: (quiet(), os.chdir("/"), beat("deep-daemon", "deaf", {}))))
forked(detached)
forked(lambda: (signal.signal(signal.SIGHUP, signal.SIG_IGN), beat("nohup")))
names = ["child", "grandchild", "setsid", "daemon", "quiet-daemon", "bare-daemon", "deep-daemon", "group", "nohup"]
while not all(os.path.exists(os.path.join(directory, n)) for n in names):
    time.sleep(0.01)
print("all there", flush=True)
if ending == "wait":
    time.sleep(600)
