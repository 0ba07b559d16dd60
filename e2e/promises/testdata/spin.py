# Keeps as many processes as it is told busy with nothing.
import os, sys

for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
else:
    os.write(1, b"spinning\n")
while True:
    pass
