// Package netguard blocks all destinations of a bridged sandbox except the public internet.
//
// It is a separate mode of the guest agent's binary. A host runs this mode in a short-lived helper container in the
// sandbox's network namespace. Only this container has the privilege (CAP_NET_ADMIN) to set packet filter rules in the
// namespace. The sandbox has no capabilities, so it can neither change nor remove the rules. A second mode reports the
// addresses and resolvers of the engine's host, to allow rules for them.
package netguard

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
)

// Command is the first argument of the guest agent's binary for this package. A mode follows.
const Command = "netguard"

// Modes.
const (
	ModeProbe = "probe" // prints Facts as JSON
	ModeApply = "apply" // applies the Rules in the next argument, as JSON
)

// Facts describes the network of the host on which a probe runs.
type Facts struct {
	Addresses []netip.Addr `json:"addresses"` // addresses of the host, without loopback
	Resolvers []netip.Addr `json:"resolvers"` // name servers of the host, without loopback
}

// Rules lists the allowed destinations of a sandbox in addition to public addresses, for example 10.1.0.0/16. Allow
// overrides Deny. Resolvers are only reachable on port 53.
type Rules struct {
	Allow     []netip.Prefix `json:"allow,omitempty"`
	Deny      []netip.Prefix `json:"deny,omitempty"`
	Resolvers []netip.Addr   `json:"resolvers,omitempty"`
}

// Closed returns the always blocked IPv4 addresses: non-public addresses and cloud metadata services. IPv6 is blocked
// completely, because a sandbox has no IPv6 addresses.
func Closed() []netip.Prefix {
	return prefixes(
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
		"192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
		"168.63.129.16/32", // Azure's host agent, the only such service with a public address
	)
}

// Public6 contains the IPv6 addresses assigned for use on the internet.
const Public6 = "2000::/3"

// Closed6 returns the parts of Public6 leading to IPv4 (6to4, Teredo) or nowhere (documentation).
func Closed6() []netip.Prefix {
	return prefixes("2002::/16", "2001::/32", "2001:db8::/32", "3fff::/20")
}

func prefixes(texts ...string) (ps []netip.Prefix) {
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// Main runs a mode and returns the exit code. It writes the report to stdout, where the host reads it.
func Main(args []string, stdout io.Writer) int {
	if err := run(args, stdout); err != nil {
		_, _ = fmt.Fprintln(stdout, "netguard:", err) // there is no other way to report a failure
		return 1
	}
	return 0
}

func run(args []string, stdout io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == ModeProbe:
		f, err := Probe()
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(f)
	case len(args) == 2 && args[0] == ModeApply:
		var r Rules
		if err := json.Unmarshal([]byte(args[1]), &r); err != nil {
			return fmt.Errorf("rules: %w", err)
		}
		return Apply(r)
	}
	return errors.New("usage: netguard probe | netguard apply RULES")
}

// Probe describes the network of the current host or network namespace.
func Probe() (Facts, error) {
	var f Facts
	nets, err := networks()
	if err != nil {
		return f, err
	}
	for _, n := range nets {
		f.Addresses = append(f.Addresses, n.Addr())
	}
	f.Resolvers, err = Resolvers("/etc/resolv.conf")
	return f, err
}

// Resolvers returns the name servers in a file, except name servers on loopback addresses. A missing file has none.
func Resolvers(file string) ([]netip.Addr, error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("resolvers: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read from
	var out []netip.Addr
	sc := bufio.NewScanner(io.LimitReader(f, 1<<20))
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if ip, err := netip.ParseAddr(fields[1]); err == nil && !ip.IsLoopback() {
			out = append(out, ip.WithZone(""))
		}
	}
	return out, sc.Err()
}

// networks returns the addresses of this namespace's interfaces together with their networks, without loopback.
func networks() ([]netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("interface addresses: %w", err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		ones, _ := n.Mask.Size()
		if ip = ip.Unmap(); ok && !ip.IsLoopback() {
			out = append(out, netip.PrefixFrom(ip, ones))
		}
	}
	return out, nil
}
