# Exchanges pairs of paths for as long as it runs: each is a directory or file at one moment and a link the next. It
# rests for a random moment in between, which leaves the sandbox's processor to those who are to be raced.
import ctypes, random, sys, time

libc = ctypes.CDLL(None, use_errno=True)
pairs = [(sys.argv[i].encode(), sys.argv[i + 1].encode()) for i in range(1, len(sys.argv), 2)]
print("swapping", flush=True)
while True:
    for a, b in pairs:
        libc.renameat2(-100, a, -100, b, 2)  # RENAME_EXCHANGE; a path may be gone for a moment
    time.sleep(random.random() * 0.0005)
