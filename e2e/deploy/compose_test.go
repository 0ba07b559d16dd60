package deploy

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/toolspec"
)

const sandboxImage = "workcell/python:3.11" // that `make images` builds

// Overrides stand in for what only a registry has: the image that sandboxes have unless they ask for another one, and
// docker:28-dind. The engine is that of this machine in a container. It is not privileged, as machines that run tests
// may not be themselves, but has what an engine needs of that; of the entrypoint of docker:28-dind it has what cgroup
// v2 needs.
const (
	registry = `
services:
  workcell:
    restart: "no"
    environment: {WORKCELL_IMAGE_MAP: "python:3.11-slim=` + sandboxImage + `"}
`
	engine = `
services:
  engine:
    image: workcell/debian:12
    restart: "no"
    entrypoint:
      - sh
      - -ec
      - |
        umount /proc/sys
        for d in /sys/fs/cgroup /sys/fs/cgroup/*/; do if mountpoint -q $$d; then mount -o remount,bind,rw $$d; fi; done
        if cd /sys/fs/cgroup && [ -e cgroup.controllers ]; then
          mkdir init
          for p in $$(cat cgroup.procs); do echo $$p > init/cgroup.procs || true; done
          sed 's/ / +/g; s/^/+/' cgroup.controllers > cgroup.subtree_control
        fi
        exec dockerd --host=unix:///run/engine/docker.sock --group=65532
    volumes: ["/usr:/usr:ro", "/etc/alternatives:/etc/alternatives:ro"]
    privileged: false
    cap_add: [NET_ADMIN, SYS_ADMIN, SYS_PTRACE]
    security_opt: ["apparmor=unconfined", "seccomp=unconfined"]
`
)

// TestCompose starts what the Compose files describe, one after the other, for they listen on one port: a client opens
// a sandbox there, which runs a command and goes.
func TestCompose(t *testing.T) {
	t.Parallel()
	dir, tag := t.TempDir(), "test-"+strings.ToLower(rand.Text())
	ref := "ghcr.io/workcell-dev/workcell:" + tag
	output(t, "go", "run", "./hack/images", "-arch", runtime.GOARCH, "-tag", ref, dir)
	output(t, "docker", "load", "--input", filepath.Join(dir, "workcell-linux-"+runtime.GOARCH+".tar"))
	t.Cleanup(func() { output(t, "docker", "image", "rm", ref) })
	token, group := rand.Text(), output(t, "stat", "--format", "%g", "/var/run/docker.sock")
	for name, text := range map[string]string{
		"env": fmt.Sprintf("WORKCELL_VERSION=%s\nWORKCELL_MCP_TOKEN=%s\nDOCKER_GROUP=%s\n", tag, token, group), "registry.yaml": registry, "engine.yaml": engine,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	compose := up(t, dir, "compose.yaml", "registry.yaml", "engine.yaml")
	archive := filepath.Join(dir, "image.tar")
	output(t, "docker", "save", "--output", archive, sandboxImage)
	output(t, "docker", "cp", archive, strings.TrimSpace(compose("ps", "-q", "engine"))+":/image.tar")
	compose("exec", "-T", "engine", "docker", "--host=unix:///run/engine/docker.sock", "load", "--input", "/image.tar")
	serves(t, token)
	compose("down", "--volumes")

	up(t, dir, "socket.yaml", "registry.yaml")
	serves(t, token)
}

// up starts what a Compose file describes, with overrides of a directory, and returns what else Compose does with it.
func up(t *testing.T, dir, file string, overrides ...string) func(args ...string) string {
	t.Helper()
	project := []string{"--project-name", "workcell-test", "--env-file", filepath.Join(dir, "env"), "--file", "deploy/compose/" + file}
	for _, name := range overrides {
		project = append(project, "--file", filepath.Join(dir, name))
	}
	compose := func(args ...string) string {
		t.Helper()
		return output(t, "docker-compose", append(slices.Clone(project), args...)...)
	}
	compose("down", "--volumes", "--remove-orphans") // of a run that was killed
	t.Cleanup(func() { compose("down", "--volumes") })
	compose("up", "--detach")
	return compose
}

// serves asks the server that was started for a sandbox.
func serves(t *testing.T, token string) {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	transport := &mcp.StreamableClientTransport{Endpoint: "http://127.0.0.1:8765/mcp", HTTPClient: &http.Client{Transport: bearer(token)}}
	cs, err := client.Connect(t.Context(), transport, nil)
	for end := time.Now().Add(time.Minute); err != nil; cs, err = client.Connect(t.Context(), transport, nil) {
		if time.Now().After(end) {
			t.Fatalf("nobody answers: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	defer cs.Close() //nolint:errcheck // all is said
	call := func(tool string, in map[string]any) map[string]any {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: in})
		if err != nil {
			t.Fatal(err)
		}
		out, _ := res.StructuredContent.(map[string]any)
		if res.IsError || out == nil {
			t.Fatalf("%s: %+v, %+v", tool, res.StructuredContent, res.Content)
		}
		return out
	}
	id := call(toolspec.ToolOpen, map[string]any{})["sandbox_id"]
	if out := call(toolspec.ToolExec, map[string]any{"sandbox_id": id, "command": "echo kept > f && python3 -c 'print(open(\"f\").read(), 6*7)'"}); out["stdout"] != "kept\n 42\n" || out["exit_code"] != 0.0 {
		t.Errorf("the command: %v", out)
	}
	call(toolspec.ToolClose, map[string]any{"sandbox_id": id, "delete_workspace": true})
}

// bearer is a transport that shows a token.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}
