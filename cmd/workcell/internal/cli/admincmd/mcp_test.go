package admincmd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/httpguard"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
)

func TestMCPTokens(t *testing.T) {
	t.Parallel()
	write := func(text string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), "tokens")
		checktest.Must(t, errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode))) // whatever the umask
		return path
	}
	f := &listenFlags{tokenFile: write("# mine\n\nalice s3cret-s3cret-s3cret\nbob other-other-other 2030-01-02T03:04:05Z\n", 0o440)} // of a Secret
	host, pod := environ.Of(nil), environ.Of(map[string]string{"KUBERNETES_SERVICE_HOST": "192.0.2.1"})
	if _, err := f.tokens(host, ""); err == nil {
		t.Error("accepts a file that a group can read outside a pod")
	}
	got, err := f.tokens(pod, "")
	checktest.Must(t, err)
	want := []httpguard.Token{
		{Name: "alice", Secret: "s3cret-s3cret-s3cret"},
		{Name: "bob", Secret: "other-other-other", Expires: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
	for name, path := range map[string]string{
		"readable by all": write("a bbbbbbbbbbbbbbbbbbbb\n", 0o644), "writable by the group": write("a bbbbbbbbbbbbbbbbbbbb\n", 0o620),
		"empty": write("#\n", 0o600), "no token": write("alice\n", 0o600),
		"bad expiry": write("alice bbbbbbbbbbbbbbbbbbbb tomorrow\n", 0o600), "missing": filepath.Join(t.TempDir(), "none"),
	} {
		if _, err := (&listenFlags{tokenFile: path}).tokens(pod, ""); err == nil || strings.Contains(err.Error(), "bbbb") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, err := (&listenFlags{}).tokens(host, "from-the-environment"); err != nil || len(got) != 1 || got[0].Secret != "from-the-environment" {
		t.Errorf("from the environment: %v %v", got, err)
	}
}

// TestNewClientsOfEndingServer verifies that new clients get an answer while a server ends.
func TestNewClientsOfEndingServer(t *testing.T) {
	t.Parallel()
	b, err := memory.New(nil)
	checktest.Must(t, err)
	m, err := session.NewManager(b, &session.Options{Instance: "i"})
	checktest.Must(t, err)
	srv, err := mcpserver.New(m, nil)
	checktest.Must(t, err)
	defer func() { checktest.Must(t, errors.Join(srv.Close(context.Background()), m.Close(context.Background()))) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	checktest.Must(t, err)
	address := l.Addr().String()
	checktest.Must(t, l.Close())
	opts := app.Options{Env: environ.Of(nil), Stderr: io.Discard}
	a := &command{&cli.Command{App: app.New(opts), Options: opts}}
	serve, end, err := (&mcpHTTPFlags{listenFlags: listenFlags{listen: address}, maxConns: 8, rate: 8}).prepare(a)
	checktest.Must(t, err)
	defer end()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	checktest.Must(t, serve(ctx, a, srv))
	res, err := (&http.Client{Timeout: time.Minute}).Get("http://" + address + "/readyz")
	checktest.Must(t, err)
	if checktest.Must(t, res.Body.Close()); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("status %s", res.Status)
	}
}
