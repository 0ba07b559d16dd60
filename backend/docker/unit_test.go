package docker_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/guest/netguard"
)

func frame(kind byte, data string) []byte {
	b := []byte{kind, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func TestStreamDemultiplexes(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("0123456789", 20_000)
	in := bytes.Join([][]byte{frame(1, "one "), frame(2, "not this"), frame(1, ""), frame(1, long), frame(1, " end")}, nil)
	got, err := io.ReadAll(feed(t, in, "one "))
	if want := "one " + long + " end"; err != nil || string(got) != want {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(want))
	}
	if _, err := io.ReadAll(feed(t, []byte{9, 0, 0, 0, 0, 0, 0, 1, 'x'}, "")); err == nil {
		t.Error("a malformed frame went unnoticed")
	}
	// If an engine cannot start a program, it writes the reason to the output.
	if got, err := io.ReadAll(feed(t, frame(1, "container is not running\r\n"), "WCLGUEST")); !errors.Is(err, backend.ErrLost) || len(got) != 0 || !strings.Contains(err.Error(), "is not running") {
		t.Errorf("the engine's own output: %q, %v", got, err)
	}
	if _, err := io.ReadAll(feed(t, frame(1, "exec failed\r\n"), "WCLGUEST")); err == nil || errors.Is(err, backend.ErrLost) {
		t.Errorf("a program that the engine cannot start: %v", err)
	}
	if got, err := io.ReadAll(feed(t, append(frame(1, "WCL"), frame(1, "GUEST and more")...), "WCLGUEST")); err != nil || string(got) != "WCLGUEST and more" {
		t.Errorf("a start in two parts: %q, %v", got, err)
	}
}

// TestNearAddresses verifies that the rules block the addresses of a local engine's host. A rootless engine has others.
func TestNearAddresses(t *testing.T) {
	t.Parallel()
	rootless, public := netip.MustParseAddr("10.0.2.100"), netip.MustParseAddr("203.0.113.7")
	probe := func() (netguard.Facts, error) { return netguard.Facts{Addresses: []netip.Addr{public, rootless}}, nil }
	for engine, want := range map[string][]netip.Addr{
		"unix:///run/user/1000/docker.sock": {rootless, public}, "tcp://far:2376": {rootless},
	} {
		if got, err := docker.AddNear([]netip.Addr{rootless}, engine, probe); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", engine, got, err, want)
		}
	}
	failed := errors.New("no netlink")
	_, err := docker.AddNear(nil, "unix:///s", func() (netguard.Facts, error) { return netguard.Facts{}, failed })
	if !errors.Is(err, failed) {
		t.Errorf("without addresses: %v, want %v", err, failed)
	}
}

// feed returns a stream over a connection that delivers in and then ends.
func feed(t *testing.T, in []byte, start string) io.Reader {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		_, _ = far.Write(in) // fails if the reader stops early
		_ = far.Close()
	}()
	t.Cleanup(func() { _ = near.Close() })
	return docker.NewStream(near, start)
}
