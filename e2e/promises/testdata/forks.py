# Every process forks as often as it can, for ever, and tells once that it could not.
import os

told = False
while True:
    try:
        os.fork()
    except OSError as e:
        if not told:
            os.write(1, (e.strerror + "\n").encode())
            told = True
