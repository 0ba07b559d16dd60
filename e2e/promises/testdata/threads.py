# Starts threads until there are no more to be had, and then holds on to all of them.
import threading, time

started = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        started += 1
except RuntimeError as e:
    print(e, started, flush=True)
time.sleep(600)
