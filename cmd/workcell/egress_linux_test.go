package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// loopbackServer returns a server on the host's loopback interface. asked receives the requested paths.
func loopbackServer(t *testing.T, addr string) (at string, asked <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	checktest.Must(t, err)
	paths := make(chan string, 16)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { paths <- r.URL.Path }))
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return l.Addr().String(), paths
}

// TestSessionsAllow verifies that the command of a step can connect to the workflow's allowed hosts in networks that
// the operator allows. It can connect to an additional host after the operator allows it with another command.
func TestSessionsAllow(t *testing.T) {
	t.Parallel()
	u := newUser(t, "local")
	first, asked := loopbackServer(t, "127.0.0.2:0")
	second, more := loopbackServer(t, "127.0.0.3:0")
	files := write(t, map[string]string{
		"reach.yaml": fmt.Sprintf(`id: reach
sandbox: {runtime: bash, network: {allow: ["%s"]}}
steps: [{id: go, type: exec, command: "curl -fsS http://%s/begun && until curl -fsS http://%s/allowed; do sleep 0.1; done"}]
`, first, first, second),
		"none.yaml": "id: none\nsteps: [{id: a, type: exec, command: 'touch x'}]\n",
	})
	run := u.command("run", filepath.Join(files, "reach.yaml"), "--egress-allow-private", "127.0.0.0/8")
	var out strings.Builder
	run.Stdout, run.Stderr = &out, &out
	checktest.Must(t, run.Start())
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	select {
	case <-asked:
	case err := <-ended:
		t.Fatalf("%v: %s", err, &out)
	}
	keys := u.sandboxes()
	if len(keys) != 1 {
		t.Fatalf("there are %v", keys)
	}
	if _, stderr := u.run(app.ExitUsage, "sandbox", "allow", keys[0], "https://x.example"); !strings.Contains(stderr, "without scheme and path") {
		t.Errorf("%s", stderr)
	}
	u.run(0, "sandbox", "allow", keys[0], second)
	if err := <-ended; err != nil || len(more) != 1 {
		t.Errorf("%v, %d requests: %s", err, len(more), &out)
	}
	u.run(0, "run", filepath.Join(files, "none.yaml"), "--keep")
	if _, stderr := u.run(app.ExitUsage, "sandbox", "allow", u.sandboxes()[0], "a.example"); !strings.Contains(stderr, "was created without network.allow") {
		t.Errorf("%s", stderr)
	}
	if _, stderr := u.run(app.ExitUsage, "run", filepath.Join(files, "none.yaml"), "--egress-allow-private", "10.1"); !strings.Contains(stderr, "10.1.2.0/24") {
		t.Errorf("%s", stderr)
	}
}
