# Connects to the socket of the sandbox's main process without a pause, from as many processes as it is told, which keep what
# is not refused.
import os, socket, sys

for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
else:
    os.write(1, b"flooding\n")
held = []
while True:
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect("\0workcell-guest")
        held.append(s)
    except OSError:
        pass
    if len(held) > 500:
        held.clear()
