//go:build !linux

package gather

import "time"

func pause(d time.Duration) { time.Sleep(d) }
