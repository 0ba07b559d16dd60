package containerd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	gocni "github.com/containerd/go-cni"
	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/launch"
	"github.com/workcell-dev/workcell/internal/guest/netguard"
)

const (
	defaultBridge = "workcell0"
	// interfaceName is the name of the network interface in a sandbox.
	interfaceName = "eth0"
)

func (o *CNIOptions) applyDefaults() error {
	if len(o.BinDirs) == 0 {
		o.BinDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}
	}
	o.Bridge = cmp.Or(o.Bridge, defaultBridge)
	o.Subnet = cmp.Or(o.Subnet, netip.MustParsePrefix("10.89.64.0/20"))
	if !o.Subnet.Addr().Is4() || o.Subnet.Bits() > 29 {
		return fmt.Errorf("containerd: Options.CNI.Subnet is not an IPv4 network of at least 8 addresses: %w",
			backend.ErrInvalid)
	}
	if len(o.Bridge) > 15 || strings.ContainsAny(o.Bridge, "/ \x00") {
		return fmt.Errorf("containerd: Options.CNI.Bridge is not an interface name: %w", backend.ErrInvalid)
	}
	return nil
}

// available reports whether all programs for a bridged network are installed.
func (o *CNIOptions) available() bool {
	there := func(program string) bool { _, err := exec.LookPath(program); return err == nil }
	for _, plugin := range []string{"bridge", "host-local", "firewall"} {
		if !slices.ContainsFunc(o.BinDirs, func(dir string) bool { return there(filepath.Join(dir, plugin)) }) {
			return false
		}
	}
	return there("iptables") || there("/usr/sbin/iptables")
}

// networkConfig returns the CNI configuration list of the network for all bridged sandboxes. One network is sufficient,
// because the sandboxes cannot reach each other. The addresses are stored in a directory shared by all installations on
// this host.
func (o *CNIOptions) networkConfig() ([]byte, error) {
	type object = map[string]any
	return json.Marshal(object{
		"cniVersion": "0.4.0",
		"name":       o.Bridge,
		"plugins": []object{
			{
				"type": "bridge", "bridge": o.Bridge, "isGateway": true, "ipMasq": true, "hairpinMode": false,
				"ipam": object{
					"type":   "host-local",
					"ranges": [][]object{{{"subnet": o.Subnet.Masked().String()}}},
					"routes": []object{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "firewall"},
		},
	})
}

// plugins returns the CNI library with only Workcell's network loaded. Every call returns a new instance. With the race
// detector, the library's lock also detects deadlocks: it treats all goroutines as one and ends the process if two
// calls overlap.
func (b *driver) plugins() (gocni.CNI, error) {
	conf, err := b.opts.CNI.networkConfig()
	if err != nil {
		return nil, err
	}
	return gocni.New(gocni.WithPluginDir(b.opts.CNI.BinDirs), gocni.WithInterfacePrefix("eth"),
		gocni.WithMinNetworkCount(1), gocni.WithConfListBytes(conf))
}

// makeNetns creates a network namespace and mounts it on a file to keep it after the exit of this process and the
// sandbox's processes. It does not change an existing namespace.
func makeNetns(path string) error {
	if isNamespace(path) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return stateError("create network namespace", err)
	}
	err = inThread(unix.CLONE_NEWNET, func() error {
		// A runtime only starts the loopback interface in namespaces created by the runtime.
		if err := errors.Join(launch.StartLoopback(), noIPv6()); err != nil {
			return err
		}
		return unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
	})
	return stateError("create network namespace", err)
}

func isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// noIPv6 disables IPv6 in the calling thread's network namespace. The namespace has only automatic link-local IPv6
// addresses, so connections over IPv6 then fail immediately.
func noIPv6() error {
	for _, which := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			return err
		}
	}
	return nil
}

// joinNetwork connects a sandbox's network namespace and blocks forbidden destinations, before any process runs in the
// namespace.
func (b *driver) joinNetwork(ctx context.Context, r *record) error {
	path := r.state().netns(r.id)
	if !hasInterface(path, interfaceName) {
		if err := b.setupNetwork(ctx, r.id, path); err != nil {
			return b.networkError(ctx, "connect the network", err)
		}
	}
	return b.guard(ctx, path)
}

// setupNetwork makes the plugins connect a network namespace. The plugins store their state by ID and reject a second
// setup. After a restart of the host or an incomplete setup, setupNetwork first undoes the earlier setup.
func (b *driver) setupNetwork(ctx context.Context, id, path string) error {
	cni, err := b.plugins()
	if err != nil {
		return err
	}
	for try := 0; ; try++ {
		cctx, cancel := context.WithTimeout(muted(ctx), b.opts.CallTimeout)
		_, err = cni.Setup(cctx, id, path)
		cancel()
		if err == nil {
			return nil
		}
		cctx, cancel = context.WithTimeout(muted(context.WithoutCancel(ctx)), b.opts.CallTimeout)
		undone := cni.Remove(cctx, id, path)
		cancel()
		if undone != nil || try > 0 || ctx.Err() != nil {
			return errors.Join(err, undone)
		}
	}
}

// guard sets the rules in a network namespace. Setting the rules again replaces them atomically.
func (b *driver) guard(ctx context.Context, path string) error {
	facts, err := netguard.Probe()
	if err != nil {
		return b.networkError(ctx, "find the host's addresses", err)
	}
	rules := netguard.Rules{Allow: b.opts.AllowNets, Resolvers: resolvers()}
	for _, a := range facts.Addresses {
		rules.Deny = append(rules.Deny, netip.PrefixFrom(a, a.BitLen()))
	}
	if err := host.InNetns(path, func() error { return netguard.Apply(rules) }); err != nil {
		return b.networkError(ctx, "guard the network", err)
	}
	return nil
}

// networkError returns ErrUnsupported, or the error of ctx if it has ended. The driver never provides an unfiltered
// network instead.
func (b *driver) networkError(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return b.calls.Fail(ctx, what, ctx.Err())
	}
	b.opts.Logger.Warn("containerd: network", "step", what, "error", err)
	return b.calls.Error(what, backend.ErrUnsupported, kit.Scrub(err.Error()))
}

func hasInterface(path, name string) bool {
	return host.InNetns(path, func() error { // an inaccessible namespace counts as having none
		_, err := net.InterfaceByName(name)
		return err
	}) == nil
}

// leaveNetwork releases a sandbox's address and deletes the network namespace. It does nothing if the namespace does
// not exist.
func (b *driver) leaveNetwork(ctx context.Context, dir stateDir, id string) error {
	path := dir.netns(id)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	cni, err := b.plugins()
	if err == nil {
		cctx, cancel := context.WithTimeout(muted(ctx), b.opts.CallTimeout)
		defer cancel()
		at := path
		if !isNamespace(path) { // for example, after a restart of the host
			at = ""
		}
		err = cni.Remove(cctx, id, at)
	}
	if err != nil {
		return b.networkError(ctx, "leave the network", err)
	}
	return deleteNetns(path)
}

// deleteNetns deletes a network namespace. It does nothing if the namespace does not exist.
func deleteNetns(path string) error {
	for isNamespace(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return stateError("delete network namespace", err)
		}
	}
	return stateError("delete network namespace", kit.Ignore(os.Remove(path), os.ErrNotExist))
}

// resolvers returns the host's name servers, except servers on loopback addresses. If systemd-resolved listens on
// loopback, resolvers returns the servers behind it.
func resolvers() []netip.Addr {
	for _, path := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		found, _ := netguard.Resolvers(path) // without an unreadable file
		found = slices.DeleteFunc(found, func(a netip.Addr) bool { return !a.Is4() })
		if len(found) > 0 {
			return found
		}
	}
	// If a sandbox can reach none of the host's name servers, use public servers, as Docker does.
	return []netip.Addr{netip.AddrFrom4([4]byte{8, 8, 8, 8}), netip.AddrFrom4([4]byte{8, 8, 4, 4})}
}

func resolvConf() string {
	var out strings.Builder
	for _, a := range resolvers() {
		fmt.Fprintf(&out, "nameserver %v\n", a)
	}
	return out.String()
}

// inThread runs f on a separate thread in new namespaces. The thread exits after f, and the kernel then removes unused
// namespaces.
func inThread(namespaces int, f func() error) error {
	return host.OnThread(func() error {
		if err := unix.Unshare(namespaces); err != nil {
			return fmt.Errorf("new namespaces: %w", err)
		}
		return f()
	})
}
