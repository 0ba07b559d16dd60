"""Tries to reach the destinations given as "protocol:address:port" and prints what came of each as JSON."""
import errno
import json
import socket
import sys
import time

out = {}
for arg in sys.argv[1:]:
    proto, rest = arg.split(":", 1)
    addr, port = rest.rsplit(":", 1)
    begin = time.monotonic()
    try:
        family = socket.AF_INET6 if ":" in addr else socket.AF_INET
        if proto == "dns":
            socket.getaddrinfo(addr, None)
            result = "ok"
        else:
            with socket.socket(family, socket.SOCK_DGRAM if proto == "udp" else socket.SOCK_STREAM) as s:
                s.settimeout(5)
                s.connect((addr, int(port)))
                s.send(b"x")
                result = "ok"
    except socket.gaierror:
        result = "unresolved"
    except socket.timeout:
        result = "timeout"
    except OSError as e:
        result = errno.errorcode.get(e.errno, str(e))
    out[arg] = {"result": result, "seconds": time.monotonic() - begin}
print(json.dumps(out))
