package server

import (
	"bytes"
	"net"
	"os"
	"slices"
	"strconv"
)

// direct counts packets sent by programs to the network instead of the egress proxy. Sending them always fails, often
// with a message without the reason. To avoid slowing down all programs by tracing system calls, direct uses the
// kernel's counters of the network namespace:
//
//   - Without a network interface, connecting or sending fails immediately. OutNoRoutes counts these failures and also
//     failed DNS lookups.
//   - In a pod, a firewall drops packets. TCP repeats the first packet of a connection (TCPSynRetrans), and the UDP
//     sockets of resolvers wait for a response.
//
// The kernel needs 20 to 50 µs for each file, so only the necessary files are read.
type direct struct {
	routed  bool  // the sandbox has an interface, see routed
	before  int64 // counter before the command
	waiting int64 // maximum number of simultaneously waiting UDP sockets
}

// routed reports whether the sandbox has an interface other than the loopback interface.
func routed() bool {
	list, _ := net.Interfaces() // empty if this fails
	return slices.ContainsFunc(list, func(i net.Interface) bool {
		return i.Flags&(net.FlagUp|net.FlagLoopback) == net.FlagUp
	})
}

// watchDirect starts counting if a host serves the egress proxy. Otherwise it returns nil.
func (s *Server) watchDirect() *direct {
	sv := s.services["egress"]
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if sv.ln == nil {
		return nil
	}
	d := &direct{routed: s.routed()}
	d.before = d.sent()
	return d
}

func (d *direct) look() {
	if d != nil && d.routed {
		d.waiting = max(d.waiting, waitingSockets("/proc/self/net/udp")+waitingSockets("/proc/self/net/udp6"))
	}
}

func (d *direct) count() int64 {
	if d == nil {
		return 0
	}
	return max(0, d.sent()-d.before) + d.waiting
}

func (d *direct) sent() int64 {
	if d.routed {
		return netCounter("/proc/self/net/netstat", "TcpExt:", "TCPSynRetrans")
	}
	return netCounter("/proc/self/net/snmp", "Ip:", "OutNoRoutes")
}

// netCounter returns a counter from a file. Each group has a line with names and a line with values. If the kernel does
// not have the counter, netCounter returns 0.
func netCounter(file, group, name string) int64 {
	text, _ := os.ReadFile(file) // other kernels, for example gVisor, have fewer files
	at := -1
	for line := range bytes.Lines(text) {
		switch fields := bytes.Fields(line); {
		case len(fields) == 0 || string(fields[0]) != group:
		case at < 0:
			at = slices.IndexFunc(fields, func(f []byte) bool { return string(f) == name })
		case at < len(fields):
			n, _ := strconv.ParseInt(string(fields[at]), 10, 64) // 0 for invalid numbers
			return n
		}
	}
	return 0
}

// waitingSockets returns the number of sockets in a file with a connection to an address outside of the sandbox.
func waitingSockets(file string) (n int64) {
	text, _ := os.ReadFile(file) // missing files are empty, see netCounter
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 4 || string(fields[3]) != "01" {
			continue
		}
		addr, _, _ := bytes.Cut(fields[2], []byte(":")) // words of 32 bits, in the host's byte order
		if !bytes.HasSuffix(addr, []byte("7F")) && !bytes.Equal(addr, []byte("00000000000000000000000001000000")) {
			n++
		}
	}
	return n
}
