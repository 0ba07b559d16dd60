package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestNetCounters verifies that netCounter reads counters in the format of Linux, and returns 0 for missing counters
// and files.
func TestNetCounters(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "net")
	const text = "Ip: Forwarding OutNoRoutes InDelivers\nIp: 1 7 9\nTcp: OutNoRoutes\nTcp: 3\nUdp: OutNoRoutes\n"
	checktest.Must(t, os.WriteFile(file, []byte(text), 0o600))
	for name, want := range map[[3]string]int64{
		{file, "Ip:", "OutNoRoutes"}: 7, {file, "Tcp:", "OutNoRoutes"}: 3, {file, "Ip:", "None"}: 0,
		{file, "Udp:", "OutNoRoutes"}: 0, {file, "Icmp:", "OutNoRoutes"}: 0, {file + "x", "Ip:", "OutNoRoutes"}: 0,
	} {
		if got := netCounter(name[0], name[1], name[2]); got != want {
			t.Errorf("%q: %d, want %d", name, got, want)
		}
	}
}

// TestWaitingSockets verifies that waitingSockets counts connected sockets, except on the loopback interface.
func TestWaitingSockets(t *testing.T) {
	t.Parallel()
	const header = "   sl  local_address rem_address   st tx_queue rx_queue\n"
	for line, want := range map[string]int64{
		"":                                       0,
		" 1: 0100007F:9C40 0100007F:0035 01 0\n": 0,
		" 1: 0A00000A:9C40 35FFFF0A:0035 01 0\n": 1,
		" 1: 00000000:9C40 00000000:0000 07 0\n": 0,
		" 1: 00000000000000000000000000000000:1 00000000000000000000000001000000:0035 01 0\n": 0,
		" 1: 00000000000000000000000000000000:1 0000000000000000FFFF00000100007F:0035 01 0\n": 0,
		" 1: 00000000000000000000000000000000:1 B80D0120000000000000000001000000:0035 01 0\n": 1,
	} {
		file := filepath.Join(t.TempDir(), "udp")
		checktest.Must(t, os.WriteFile(file, []byte(header+line), 0o600))
		if got := waitingSockets(file); got != want {
			t.Errorf("%q: %d, want %d", line, got, want)
		}
	}
}
