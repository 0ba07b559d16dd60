package netguard

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
)

func TestResolvers(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	checktest.Must(t, os.WriteFile(file, []byte(strings.Join([]string{
		"# nameserver 9.9.9.9", "search example.com", "nameserver 10.0.0.2", "nameserver\t192.0.2.7 # second",
		"nameserver 127.0.0.53", "nameserver ::1", "nameserver fe80::1%eth0", "nameserver", "nameserver what", "options ndots:0",
	}, "\n")), 0o600))
	got, err := Resolvers(file)
	want := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("fe80::1")}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
		t.Errorf("resolvers: %v (-want +got)\n%s", err, diff)
	}
}

func TestClosedCoversMetadataAndPrivate(t *testing.T) {
	t.Parallel()
	closed := func(s string) bool {
		for _, p := range Closed() {
			if p.Contains(netip.MustParseAddr(s)) {
				return true
			}
		}
		return false
	}
	for _, s := range []string{
		"169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16", // cloud services
		"127.0.0.1", "10.0.0.1", "172.17.0.1", "172.31.255.255", "192.168.1.1", "255.255.255.255", "224.0.0.1", "0.0.0.0",
	} {
		if !closed(s) {
			t.Errorf("%s is open", s)
		}
	}
	for _, s := range []string{"1.1.1.1", "8.8.8.8", "172.32.0.1", "192.0.2.1", "100.128.0.1", "11.0.0.1"} {
		if closed(s) {
			t.Errorf("%s is closed", s)
		}
	}
}

func TestMainRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"serve"}, {ModeApply}, {ModeApply, "{"}, {ModeApply, `{"allow":["x"]}`}, {ModeProbe, "x"}} {
		var out bytes.Buffer
		if code := Main(args, &out); code != 1 || out.Len() == 0 {
			t.Errorf("Main(%q) = %d, %q", args, code, out.String())
		}
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code := Main([]string{ModeProbe}, &out); code != 0 {
		t.Fatalf("Main = %d, %s", code, out.String())
	}
	var f Facts
	checktest.Must(t, json.Unmarshal(out.Bytes(), &f))
	for _, a := range append(f.Addresses, f.Resolvers...) {
		if !a.IsValid() || a.IsLoopback() {
			t.Errorf("address %v", a)
		}
	}
}
