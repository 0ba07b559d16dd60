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

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

const sandboxImage = "workcell/python:3.11" // built by `make images`

// The overrides replace images only available from a registry: the default image of sandboxes, and docker:28-dind. The
// engine is the host's engine in a container. It is not privileged, because test hosts may be unprivileged containers
// too, but it has the privileges of an engine. The entrypoint contains the cgroup v2 setup of docker:28-dind.
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

// TestCompose starts the services of the Compose files, one file after the other, because they use the same port. A
// client opens a sandbox, runs a command, and closes it.
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
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
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

// up starts the services of a Compose file, with overrides in a directory. It returns a function for other Compose
// commands.
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
	compose("down", "--volumes", "--remove-orphans") // clean up after a killed run
	t.Cleanup(func() { compose("down", "--volumes") })
	compose("up", "--detach")
	return compose
}

// serves opens a sandbox through the started server.
func serves(t *testing.T, token string) {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	transport := &mcp.StreamableClientTransport{Endpoint: "http://127.0.0.1:8765/mcp", HTTPClient: &http.Client{Transport: rig.Bearer{Token: token}}}
	cs, err := client.Connect(t.Context(), transport, nil)
	for end := time.Now().Add(time.Minute); err != nil; cs, err = client.Connect(t.Context(), transport, nil) {
		if time.Now().After(end) {
			t.Fatalf("the server does not answer: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	defer cs.Close() //nolint:errcheck // all is said
	call := func(tool string, in map[string]any) map[string]any {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: in})
		must(t, err)
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
