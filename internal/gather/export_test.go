package gather

import "time"

// PauseWith makes a reader wait by another clock than the kernel's.
func (g *Reader) PauseWith(pause func(time.Duration)) { g.pause = pause }
