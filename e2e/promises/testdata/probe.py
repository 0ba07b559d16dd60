# Tries to reach each target of the JSON list on standard input, all at once, and prints what came of it: "reached", or
# the name of the error and how long it took.
import errno, json, socket, struct, sys, threading, time

TIMEOUT = 10


def connect(kind, host, port):
    """Connects; a link-local address is tried on every interface."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    places = [(host, port)]
    if host.startswith("fe80"):
        places = [(host, port, 0, number) for number, _ in socket.if_nameindex()]
    for place in places:
        s = socket.socket(family, kind)
        s.settimeout(TIMEOUT)
        try:
            s.connect(place)
            if s.getsockname() == s.getpeername():  # was given the very port that it asks for
                return connect(kind, host, port)
            return s
        except OSError as e:
            s.close()
            error = e
    raise error


def tcp(host, port):
    connect(socket.SOCK_STREAM, host, port).close()


def udp(host, port):
    with connect(socket.SOCK_DGRAM, host, port) as s:
        for _ in range(3):
            s.send(b"probe " + host.encode())
            time.sleep(0.05)
        s.recv(100)


def icmp(host, _):
    body = b"workcell probe"
    head = struct.pack("!BBHHH", 8, 0, 0, 0, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as s:
        s.settimeout(TIMEOUT)
        s.sendto(head + body, (host, 0))
        s.recv(100)


def dns(host, _):
    socket.getaddrinfo(host, 80)


def unix(host, _):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(TIMEOUT)
        s.connect("\0" + host)


def probe(t):
    began = time.monotonic()
    try:
        globals()[t["kind"]](t["host"], t.get("port", 0))
        t["result"] = "reached"
    except socket.timeout:
        t["result"] = "timeout"
    except socket.gaierror as e:
        t["result"] = "gaierror %d" % e.errno
    except OSError as e:
        t["result"] = errno.errorcode.get(e.errno, str(e))
    t["seconds"] = round(time.monotonic() - began, 2)


targets = json.load(sys.stdin)
threads = [threading.Thread(target=probe, args=(t,)) for t in targets]
for t in threads:
    t.start()
for t in threads:
    t.join()
json.dump(targets, sys.stdout)
