// Package netguard closes the network of a bridged sandbox towards everything that is not the public internet.
//
// The guest binary carries it as a mode of its own. A host runs that mode in a short-lived container of its own which
// shares the sandbox's network namespace and alone has the privilege (CAP_NET_ADMIN) to set packet filter rules there;
// the sandbox, without any capability, can neither change nor remove them. A second mode reports the addresses and the
// resolvers of the machine on which the engine runs, so that they can be closed and let through respectively.
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

// Command is the guest binary's first argument for this package; a mode follows.
const Command = "netguard"

// Modes.
const (
	ModeProbe = "probe" // print Facts as JSON
	ModeApply = "apply" // apply the Rules in the next argument, JSON
)

// Facts describe the network of the machine that a probe runs on.
type Facts struct {
	Addresses []netip.Addr `json:"addresses"` // its own, without loopback
	Resolvers []netip.Addr `json:"resolvers"` // its name servers, without loopback
}

// Rules are what a sandbox may reach besides public addresses. Allow wins over Deny, and resolvers are reached on
// port 53 only.
type Rules struct {
	Allow     []netip.Prefix `json:"allow,omitempty"`
	Deny      []netip.Prefix `json:"deny,omitempty"`
	Resolvers []netip.Addr   `json:"resolvers,omitempty"`
}

// Closed lists the IPv4 addresses that are closed in any case: not public, or the metadata service of a cloud. IPv6 is
// closed as a whole, because a sandbox has none.
func Closed() []netip.Prefix {
	return prefixes(
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
		"192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
		"168.63.129.16/32", // Azure's host agent, the one such service at a public address
	)
}

// Public6 has the addresses of IPv6 that are given out for use on the internet.
const Public6 = "2000::/3"

// Closed6 returns those of Public6 that lead elsewhere: into IPv4 (6to4, Teredo), or nowhere (documentation).
func Closed6() []netip.Prefix {
	return prefixes("2002::/16", "2001::/32", "2001:db8::/32", "3fff::/20")
}

func prefixes(texts ...string) (ps []netip.Prefix) {
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// Main runs a mode and returns the exit code. It reports on stdout, where the host reads it.
func Main(args []string, stdout io.Writer) int {
	if err := run(args, stdout); err != nil {
		_, _ = fmt.Fprintln(stdout, "netguard:", err) // nobody is left to hear of a failure
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

// Probe describes the network of the machine, or namespace, it runs in.
func Probe() (Facts, error) {
	var f Facts
	nets, err := networks()
	if err != nil {
		return f, err
	}
	for _, n := range nets {
		f.Addresses = append(f.Addresses, n.Addr())
	}
	file, err := os.Open("/etc/resolv.conf")
	if errors.Is(err, os.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("resolvers: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read from
	f.Resolvers, err = resolvers(file)
	return f, err
}

// networks returns the addresses of this namespace's interfaces with the networks that they are in, without loopback.
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

func resolvers(r io.Reader) ([]netip.Addr, error) {
	var out []netip.Addr
	sc := bufio.NewScanner(io.LimitReader(r, 1<<20))
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
