package server

import (
	"bytes"
	"net"
	"os"
	"slices"
	"strconv"
)

// direct counts how often programs send something to the network around the egress proxy. This always fails, often with
// a message that does not explain the reason. Tracing system calls would slow down all programs, so the kernel's
// counters of the network namespace must do:
//
//   - Without a network interface, connecting or sending fails at once, and OutNoRoutes counts it. DNS lookups are
//     included.
//   - In a pod, a firewall drops packets: TCP repeats its first packet (TCPSynRetrans), and the UDP sockets of
//     resolvers wait for a response.
//
// Each file takes the kernel 20 to 50 µs, so only the necessary files are read.
type direct struct {
	routed  bool  // there is an interface
	before  int64 // counted before the command
	waiting int64 // most UDP sockets that waited at a time
}

// routed reports whether the sandbox has an interface other than the loopback interface.
func routed() bool {
	list, _ := net.Interfaces() // none if that fails
	return slices.ContainsFunc(list, func(i net.Interface) bool {
		return i.Flags&(net.FlagUp|net.FlagLoopback) == net.FlagUp
	})
}

// watchDirect starts to count, if a host serves the egress proxy.
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

// netCounter returns a counter of a file in which one line of each group has the names and the next line the values; 0
// if the kernel does not have the counter.
func netCounter(file, group, name string) int64 {
	text, _ := os.ReadFile(file) // other kernels, such as gVisor, have fewer files
	at := -1
	for line := range bytes.Lines(text) {
		switch fields := bytes.Fields(line); {
		case len(fields) == 0 || string(fields[0]) != group:
		case at < 0:
			at = slices.IndexFunc(fields, func(f []byte) bool { return string(f) == name })
		case at < len(fields):
			n, _ := strconv.ParseInt(string(fields[at]), 10, 64) // 0 if it is not a number
			return n
		}
	}
	return 0
}

// waitingSockets returns how many sockets of a file are connected to an address outside of the sandbox.
func waitingSockets(file string) (n int64) {
	text, _ := os.ReadFile(file) // as above
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 4 || string(fields[3]) != "01" {
			continue
		}
		addr, _, _ := bytes.Cut(fields[2], []byte(":")) // words of 32 bits, in the byte order of the machine
		if !bytes.HasSuffix(addr, []byte("7F")) && !bytes.Equal(addr, []byte("00000000000000000000000001000000")) {
			n++
		}
	}
	return n
}
