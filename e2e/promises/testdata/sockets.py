# Makes sockets that could widen a sandbox's network, and tries to change the network. Prints the outcome of each.
import ctypes, errno, fcntl, json, os, platform, socket, struct, sys

out = {}


def attempt(name, f):
    try:
        f()
        out[name] = "done"
    except OSError as e:
        out[name] = errno.errorcode.get(e.errno, str(e))


def netlink(protocol, kind, flags, body):
    """Sends one message and raises what the kernel answers."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as s:
        s.settimeout(3)
        s.bind((0, 0))
        s.send(struct.pack("=LHHLL", 16 + len(body), kind, flags | 0x5, 1, 0) + body)  # REQUEST | ACK
        answer = s.recv(4096)
        code = struct.unpack("=l", answer[16:20])[0]
        if code:
            raise OSError(-code, "netlink")


def batch(kind, body):
    """Sends one nf_tables message inside a batch, and raises what the kernel answers."""
    def message(kind, flags, body):
        return struct.pack("=LHHLL", 16 + len(body), kind, flags, 1, 0) + body
    head = struct.pack("!BBH", 0, 0, 10)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as s:
        s.settimeout(3)
        s.send(message(0x10, 1, head) + message(0xA00 | kind, 5, struct.pack("!BBH", 2, 0, 0) + body) + message(0x11, 1, head))
        code = struct.unpack("=l", s.recv(4096)[16:20])[0]
        if code:
            raise OSError(-code, "netlink")


def ioctl(number, name, value):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, number, struct.pack("16sh14x", name, value))


def socketcall(family, kind):
    """Makes a socket as a 32-bit program may: through the one call that all socket calls once were."""
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, "no 32-bit calls")
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, ctypes.c_size_t(4096), 7, 0x62, -1, ctypes.c_long(0))  # rwx, private, anonymous, below 4 GiB
    code = b"\x53\xb8" + struct.pack("=L", 102) + b"\xbb" + struct.pack("=L", 1) + b"\xb9" + struct.pack("=L", at + 1024) + b"\xcd\x80\x5b\xc3"
    ctypes.memmove(at, code, len(code))
    ctypes.memmove(at + 1024, struct.pack("=LLL", family, kind, 0), 12)
    child = os.fork()  # a kernel without 32-bit calls ends whoever tries
    if child == 0:
        answer = ctypes.CFUNCTYPE(ctypes.c_int)(at)()
        os._exit(min(-answer, 255) if answer < 0 else 0)
    status = os.waitpid(child, 0)[1]
    if status != 0:
        raise OSError(os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.ENOSYS, "socketcall")


def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


attempt("packet", lambda: socket.socket(17, socket.SOCK_RAW, socket.htons(3)))
attempt("packet dgram", lambda: socket.socket(17, socket.SOCK_DGRAM, socket.htons(3)))
attempt("raw icmp", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("raw tcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP))
attempt("raw ip", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
attempt("raw icmp6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6))
for kind, name in ((socket.SOCK_STREAM, "vsock"), (socket.SOCK_DGRAM, "vsock dgram"), (socket.SOCK_SEQPACKET, "vsock seqpacket")):
    attempt(name, lambda: socket.socket(40, kind))
for family, name in ((40, "vsock"), (38, "kernel crypto"), (17, "packet"), (44, "xdp")):
    attempt("socketcall " + name, lambda: socketcall(family, socket.SOCK_STREAM))
attempt("xdp", lambda: socket.socket(44, socket.SOCK_RAW))
attempt("kernel crypto", lambda: socket.socket(38, socket.SOCK_SEQPACKET))
attempt("netlink: link down", lambda: netlink(0, 16, 0, struct.pack("=BxHlLL", 0, 0, 1, 0, 1)))
attempt("netlink: new link", lambda: netlink(0, 16, 0x600, struct.pack("=BxHlLL", 0, 0, 0, 0, 0) + attribute(3, b"evil0\0") + attribute(18, attribute(1, b"dummy\0"))))
attempt("netlink: new address", lambda: netlink(0, 20, 0x600, struct.pack("=BBBBl", 2, 8, 0, 0, 1) + attribute(2, bytes([10, 9, 8, 7])) + attribute(1, bytes([10, 9, 8, 7]))))
attempt("netlink: new route", lambda: netlink(0, 24, 0x600, struct.pack("=BBBBBBBBL", 2, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(4, struct.pack("=l", 1))))
attempt("nftables: delete tables", lambda: batch(2, b""))
attempt("ioctl: link down", lambda: ioctl(0x8914, b"lo", 0))
attempt("ioctl: address", lambda: ioctl(0x8916, b"lo", 2))
attempt("mark", lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 36, 1))
attempt("transparent", lambda: socket.socket().setsockopt(0, 19, 1))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    flags = struct.unpack("H", fcntl.ioctl(s, 0x8913, struct.pack("16s24x", b"lo"))[16:18])[0]
if flags & 9 != 9:  # up, loopback
    out["the loopback interface"] = "down: %x" % flags
json.dump(out, sys.stdout)
