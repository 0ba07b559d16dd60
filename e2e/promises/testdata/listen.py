# Accepts connections on TCP port 9000 and answers datagrams on UDP port 9001.
import socket, threading

tcp = socket.create_server(("0.0.0.0", 9000))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", 9001))


def answer():
    while True:
        data, sender = udp.recvfrom(100)
        udp.sendto(data, sender)


threading.Thread(target=answer, daemon=True).start()
print("listening", flush=True)
while True:
    tcp.accept()[0].close()
