//go:build linux

package workers

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
)

// network consists of hosts connected only by a network: namespaces with an address each, on a bridge in another
// namespace, which has the database.
type network struct {
	server   *pgtest.Server
	machines []*machine
}

// newNetwork creates namespaces for machines, and a database with a separate address. Everything is removed at the end
// of the test.
func newNetwork(t *testing.T, machines int) *network {
	t.Helper()
	n := &network{server: pgtest.NewServer(t, "max_connections = 400")}
	prefix := fmt.Sprintf("wc%d", os.Getpid())
	db := addNamespace(t, prefix+"db")
	ip(t, "-n", db, "link", "add", "bridge", "type", "bridge")
	ip(t, "-n", db, "addr", "add", "10.83.0.1/24", "dev", "bridge")
	ip(t, "-n", db, "link", "set", "bridge", "up")
	for i := range machines {
		name := addNamespace(t, fmt.Sprintf("%s%d", prefix, i+1))
		port := fmt.Sprintf("port%d", i+1)
		ip(t, "-n", db, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
		ip(t, "-n", db, "link", "set", port, "master", "bridge", "up")
		ip(t, "-n", name, "addr", "add", fmt.Sprintf("10.83.0.%d/24", i+2), "dev", "eth0")
		ip(t, "-n", name, "link", "set", "eth0", "up")
		m := newMachine(t, name, "postgres://postgres@10.83.0.1:5432/postgres")
		m.Prefix = []string{"nsenter", "--net=/run/netns/" + name, "--"}
		n.machines = append(n.machines, m)
	}
	pgtest.Relay(t, listenIn(t, db, "10.83.0.1:5432"), n.server.URL)
	return n
}

// addNamespace creates a network namespace with a loopback interface.
func addNamespace(t *testing.T, name string) string {
	t.Helper()
	ip(t, "netns", "add", name)
	t.Cleanup(func() { ip(t, "netns", "del", name) })
	ip(t, "-n", name, "link", "set", "lo", "up")
	return name
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// listenIn listens on an address in a namespace. It switches a thread to the namespace, and the thread is not used
// again.
func listenIn(t *testing.T, namespace, address string) net.Listener {
	t.Helper()
	var l net.Listener
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var f *os.File
		if f, err = os.Open("/run/netns/" + namespace); err != nil {
			return
		}
		defer f.Close() //nolint:errcheck // it was only entered
		if err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err == nil {
			l, err = net.Listen("tcp", address)
		}
	}()
	<-done
	must(t, err)
	return l
}
