"""Runs programs for one client after another and keeps their variables: python3 -u -c SOURCE DIR.

Clients connect to DIR/python.sock. A request is a line of JSON; what is printed is sent back as frames, a kind
("o": standard output, "e": standard error, "x": exit code, the last one) and a length before the bytes. The value
of the last expression and images are left in DIR, in a file that is named after the client's command. DIR/python.now
has the name of the current command.
"""
import ast, base64, fcntl, inspect, json, linecache, os, queue, select, signal, socket, struct, sys, threading, time, traceback, types, warnings, weakref

DIR = sys.argv[1]
IDLE = 1800  # seconds without a call after which the interpreter ends
GRACE = 3  # seconds that a program has to end when its client is gone
MAX_VALUE = 64 << 10  # characters
MAX_IMAGES, MAX_IMAGE = 8, 8 << 20  # bytes


class Printed:
    """Sends what is written to file descriptors 1 and 2, by whatever process, to the client."""

    def __init__(self):
        self.lock = threading.RLock()
        self.client = None
        self.pipes = {}
        for fd, kind in ((1, b"o"), (2, b"e")):
            r, w = os.pipe()
            os.dup2(w, fd)
            os.close(w)
            os.set_blocking(r, False)
            self.pipes[r] = kind
        threading.Thread(target=self.pump, daemon=True).start()

    def pump(self):
        while True:
            ready, _, _ = select.select(list(self.pipes), [], [])
            with self.lock:
                for r in ready:
                    self.read(r)

    def read(self, r):
        try:
            data = os.read(r, 1 << 16)
        except BlockingIOError:
            return False
        self.frame(self.pipes[r], data)
        return True

    def drain(self):
        """Sends what this process has written so far."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # the program closed or replaced it
                pass
        with self.lock:
            for r in self.pipes:
                while self.read(r):
                    pass

    def frame(self, kind, data):
        if self.client is not None:
            try:
                self.client.sendall(kind + struct.pack(">I", len(data)) + data)
            except OSError:  # the client is gone, which its watcher notices
                pass


class Interpreter:
    def __init__(self):
        self.main = threading.main_thread().ident
        self.running = False
        self.loop = None
        self.calls = 0
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self.names = module.__dict__
        signal.signal(signal.SIGINT, self.interrupted)

    def interrupted(self, *_):
        if self.running:
            raise KeyboardInterrupt

    def run(self, code):
        """Runs a program and returns its exit code, the value of its last expression, and images."""
        self.calls += 1
        name = "<call %d>" % self.calls
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            self.running = True
            return 0, *self.present(self.evaluate(code, name))
        except SystemExit as e:
            if e.code is None or isinstance(e.code, int):
                return int(e.code or 0) & 255, None, []
            print(e.code, file=sys.stderr)
            return 1, None, []
        except BaseException as e:
            self.running = False
            self.explain(e)
            return (130 if isinstance(e, KeyboardInterrupt) else 1), None, []
        finally:
            self.running = False

    def evaluate(self, code, name):
        tree, last = ast.parse(code, name), None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        self.step(tree, name, "exec")
        return None if last is None else self.step(last, name, "eval")

    def step(self, tree, name, mode):
        compiled = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(compiled, self.names)
        if not compiled.co_flags & inspect.CO_COROUTINE:
            return value
        if self.loop is None:
            import asyncio

            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(value)

    def present(self, value):
        text, images = None, self.figures()
        if value is not None:
            self.names["_"] = value
            text = repr(value)
            for way in ("_repr_png_", "_repr_jpeg_"):
                picture = getattr(type(value), way, None)
                picture = picture and picture(value)
                if isinstance(picture, bytes):
                    images.append(picture)
                    break
        if text is not None and len(text) > MAX_VALUE:
            text = "%s… (%d characters more)" % (text[:MAX_VALUE], len(text) - MAX_VALUE)
        return text, images

    def figures(self):
        """Returns the open figures of matplotlib as images, and closes them."""
        plt = sys.modules.get("matplotlib.pyplot")
        if plt is None:
            return []
        import io

        images = []
        for number in plt.get_fignums():
            picture = io.BytesIO()
            plt.figure(number).savefig(picture, format="png", bbox_inches="tight")
            images.append(picture.getvalue())
        plt.close("all")
        return images

    def explain(self, e):
        """Prints a traceback without the frames of this program."""
        tb = e.__traceback__
        while tb is not None and not tb.tb_frame.f_code.co_filename.startswith("<call "):
            tb = tb.tb_next
        try:
            traceback.print_exception(type(e), e, tb)
        except BaseException:
            print(type(e).__name__, file=sys.stderr)


def keep(exec_id, value, images):
    """Leaves a result for the host."""
    images = [base64.b64encode(i).decode() for i in images if len(i) <= MAX_IMAGE][:MAX_IMAGES]
    if value is None and not images:
        return
    file = os.path.join(DIR, "result-" + os.path.basename(exec_id))
    with open(file + ".new", "w") as f:
        json.dump({"value": value, "images": images}, f)
    os.replace(file + ".new", file)


def watch(conn, over, woken):
    """Ends the program of a client that is gone. woken is readable when the program is over."""
    select.select([conn, woken], [], [])
    if over.is_set():
        return
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    if not over.wait(GRACE):
        os._exit(70)


def accept(listener, requests, clients):
    while True:
        conn, _ = listener.accept()
        clients.add(conn)
        threading.Thread(target=receive, args=(conn, requests), daemon=True).start()


def receive(conn, requests):
    try:
        with conn.makefile("rb") as f:
            line = f.readline()
        if line.endswith(b"\n"):
            requests.put((conn, json.loads(line)))
            return
    except (OSError, ValueError):
        pass
    conn.close()


def serve():
    os.makedirs(DIR, 0o700, exist_ok=True)
    lock = os.open(os.path.join(DIR, "python.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # another one serves already
    address = os.path.join(DIR, "python.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address + ".new")
    listener.listen(16)
    os.replace(address + ".new", address)
    with open(os.path.join(DIR, "python.exec"), "w") as f:
        f.write(os.environ.get("WORKCELL_EXEC", ""))
    os.write(1, b"ready\n")
    os.environ.setdefault("MPLBACKEND", "Agg")
    warnings.filterwarnings("ignore", message=".*non-interactive.*")
    sys.argv = [""]
    printed, interpreter, requests = Printed(), Interpreter(), queue.Queue()
    wake, woken = socket.socketpair()
    clients, pid = weakref.WeakSet(), os.getpid()

    def disown():  # else a child that outlives this process would keep clients waiting, and others from serving
        for fd in [lock, listener.detach()] + [conn.detach() for conn in list(clients)]:
            if fd >= 0:
                os.close(fd)

    os.register_at_fork(after_in_child=disown)
    threading.Thread(target=accept, args=(listener, requests, clients), daemon=True).start()
    while True:
        try:
            conn, request = requests.get(timeout=IDLE)
        except queue.Empty:
            return
        with conn:
            if select.select([conn], [], [], 0)[0]:  # the client is gone
                continue
            try:
                with open(os.path.join(DIR, "python.now"), "w") as f:
                    f.write(request["exec"])
            except OSError:  # the host may end this interpreter if another program does not answer
                pass
            with printed.lock:
                printed.client = conn
            over = threading.Event()
            watcher = threading.Thread(target=watch, args=(conn, over, woken), daemon=True)
            watcher.start()
            try:
                code, value, images = interpreter.run(request["code"])
            except KeyboardInterrupt:  # in the last moment
                code, value, images = 130, None, []
            if os.getpid() != pid:  # a child that the program forked, and that came to its end
                os._exit(code)
            over.set()
            wake.send(b"x")
            watcher.join()
            woken.recv(1)
            try:
                keep(request["exec"], value, images)
            except OSError as e:  # the disk is full: the variables are worth more than this value
                print("the value is lost:", e, file=sys.stderr)
            printed.drain()
            with printed.lock:
                printed.frame(b"x", str(code).encode())
                printed.client = None


serve()
