//go:build linux

package faults

import (
	"testing"
	"time"
)

// TestKilledPool: the next command removes the pooled sandboxes of a killed server, including those being created.
func TestKilledPool(t *testing.T) {
	for name, whole := range map[string]bool{"full": true, "while it is filled": false} {
		t.Run(name, func(t *testing.T) {
			on(t, engines(), func(t *testing.T, h *host) {
				p := h.Start(t, "mcp", "--transport", "http", "--listen", "127.0.0.1:0", "--pool", "debian:bookworm-slim=3")
				p.Await(t, "serving", "MCP")
				ready := func() (n int) {
					var list []struct{ State string }
					h.Read(t, &list, "sandbox", "ls")
					for _, s := range list {
						if s.State == "pooled" {
							n++
						}
					}
					return n
				}
				eventually(t, "sandboxes are ready", func() bool { n := ready(); return n == 3 || n > 0 && !whole })
				p.Kill()
				h.OK(t, "sandbox", "ls")
				began := time.Now()
				h.nothingLeft(t)
				t.Logf("%s: gone %v after the next command", h.engine, time.Since(began))
				if n := ready(); n != 0 {
					t.Errorf("%d sandboxes are listed as pooled", n)
				}
			})
		})
	}
}
