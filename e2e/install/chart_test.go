package install

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/jackc/pgx/v5"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/clustertest"
	"github.com/workcell-dev/workcell/internal/guestimage"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

const release, token = "desk", "a-token-that-is-long-enough-for-a-test"

// loadCommand loads the command's image into the node for the duration of a test.
func loadCommand(t *testing.T) {
	t.Helper()
	node, err := ctrd.New(clustertest.Containerd, ctrd.WithDefaultNamespace("k8s.io"))
	must(t, err)
	archive, err := os.Open(filepath.Join(imagesDir, "workcell-linux-"+runtime.GOARCH+".tar"))
	must(t, err)
	_, err = node.Import(t.Context(), archive)
	must(t, err)
	must(t, archive.Close())
	t.Cleanup(func() {
		must(t, node.ImageService().Delete(context.Background(), image, images.SynchronousDelete()))
		must(t, node.Close())
	})
}

// helm runs the real Helm on the cluster.
func helm(t *testing.T, args ...string) {
	t.Helper()
	program, err := root("hack/tool.sh", "helm").Output()
	must(t, err)
	c := root(strings.TrimSpace(string(program)), append([]string{"--kubeconfig", clustertest.Kubeconfig(), "--namespace", namespace()}, args...)...)
	home := t.TempDir()
	c.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("helm %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func namespace() string { return os.Getenv(clustertest.NamespaceVariable) }

// database returns two URLs of an empty database: for the host, and for pods, because the node has a different address
// in the cluster.
func database(t *testing.T) (here, inside string) {
	t.Helper()
	here = pgtest.Database(t)
	at, err := pgx.ParseConfig(here)
	must(t, err)
	l, err := net.Listen("tcp", net.JoinHostPort(clustertest.Service, "0"))
	must(t, err)
	pgtest.Relay(t, l, here)
	return here, "postgres://" + at.User + "@" + l.Addr().String() + "/" + at.Database + "?sslmode=disable"
}

// TestChart installs the chart into a namespace with the restricted Pod Security Standard, with two servers, a worker,
// and a database. It uses the image of `make image` and no registry. A client opens a sandbox through the servers,
// which answer alternate requests and have only the chart's role. The sandbox is a pod with a volume. It runs a command
// and is removed. The worker executes a run. Finally, everything is uninstalled.
func TestChart(t *testing.T) {
	t.Parallel()
	api, err := clustertest.Config()
	must(t, err)
	loadCommand(t)
	state, inside := database(t)
	for name, data := range map[string]map[string]string{"workcell-token": {"token": token}, "workcell-state": {"url": inside}} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data}
		_, err = clustertest.Secrets(api, namespace()).Create(t.Context(), secret, metav1.CreateOptions{})
		must(t, err)
	}
	helm(t, "install", release, "deploy/helm/workcell", "--wait", "--timeout", patience.String(),
		"--set", "replicas=2,workers.replicas=1,database.secret=workcell-state", "--set", "guestImage="+guestimage.Reference(),
		"--set", "sandboxes.networkPolicy=enforced,sandboxes.labels.team=ml,sandboxes.nodeSelector.kubernetes\\.io/os=linux,sandboxes.storageClass="+clustertest.StorageClass,
		"--set-json", `config={"map_images": {"python:3.11-slim": "workcell/python:3.11"}}`)
	installed := true
	uninstall := func() {
		if installed {
			helm(t, "uninstall", release, "--wait", "--timeout", patience.String())
		}
		installed = false
	}
	t.Cleanup(uninstall) // after a failed test
	servers := ready(t, api, "server", 2)
	ready(t, api, "worker", 1)
	client := connect(t, servers)
	id, _ := call(t, client, toolspec.ToolOpen, obj{})["sandbox_id"].(string)
	pods, err := clustertest.Pods(api, namespace()).List(t.Context(), metav1.ListOptions{LabelSelector: backend.LabelID + "=" + id})
	if must(t, err); len(pods.Items) != 1 || slices.Contains(servers, pods.Items[0].Status.PodIP) {
		t.Fatalf("the sandbox %q is %d pods", id, len(pods.Items))
	}
	if pod := pods.Items[0]; pod.Labels["team"] != "ml" || pod.Spec.NodeSelector[corev1.LabelOSStable] != "linux" {
		t.Errorf("the sandbox's pod: %+v, %v", pod.Labels, pod.Spec.NodeSelector)
	}
	out := call(t, client, toolspec.ToolExec, obj{"sandbox_id": id, "command": "echo kept > f && cat f && id -u && hostname"})
	if out["stdout"] != "kept\n1000\nworkcell\n" || out["exit_code"] != 0.0 {
		t.Errorf("the command: %v", out)
	}
	if out := call(t, client, toolspec.ToolFSRead, obj{"sandbox_id": id, "path": "f"}); out["contents"] != "kept\n" {
		t.Errorf("the file: %v", out)
	}
	call(t, client, toolspec.ToolClose, obj{"sandbox_id": id, "delete_workspace": true})
	must(t, client.Close())
	gone(t, api, "of the sandbox", backend.LabelID+"="+id)
	carriedOut(t, state)
	uninstall()
	gone(t, api, "that was installed", "app.kubernetes.io/instance="+release)
}

// ready waits for the pods of servers or workers and returns their addresses.
func ready(t *testing.T, api *rest.Config, what string, n int) (addresses []string) {
	t.Helper()
	selector := "app.kubernetes.io/instance=" + release + ",app.kubernetes.io/name=workcell-" + what
	pods, err := clustertest.Pods(api, namespace()).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	must(t, err)
	for _, pod := range pods.Items {
		if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			t.Fatalf("a %s is not ready: %+v", what, pod.Status)
		}
		addresses = append(addresses, pod.Status.PodIP)
	}
	if len(addresses) != n {
		t.Fatalf("%d pods of %ss, want %d", len(addresses), what, n)
	}
	return addresses
}

// carriedOut adds a run to the queue from the host. The worker must execute it, and the output file must be collected.
func carriedOut(t *testing.T, state string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "count.yaml")
	must(t, os.WriteFile(file, []byte(`id: count
sandbox: {runtime: python}
outputs: [sum.txt]
steps:
  - {id: sum, type: exec, command: "cat words.txt | wc -w > sum.txt"}
`), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "w"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "w", "words.txt"), []byte("three words travelled\n"), 0o600))
	workcell := func(args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), filepath.Join(imagesDir, "workcell-linux-"+runtime.GOARCH), args...)
		c.Env = append(os.Environ(), "WORKCELL_STATE="+state, "WORKCELL_STATE_DIR="+filepath.Join(dir, "state"))
		out, err := c.Output()
		if err != nil {
			t.Fatalf("workcell %s: %v: %s, %+v", strings.Join(args, " "), err, out, err)
		}
		return strings.TrimSpace(string(out))
	}
	id := workcell("run", "--detach", file, "--backend", "kubernetes", "--workspace", filepath.Join(dir, "w"))
	workcell("runs", "logs", id, "--follow")
	if got := workcell("runs", "get", id, "sum.txt", "-"); got != "3" {
		t.Errorf("the run made %q", got)
	}
}

type obj = map[string]any

// connect returns a client that calls the servers in turns by the name of their service. The host has neither the
// cluster's resolver nor its load balancing.
func connect(t *testing.T, servers []string) *mcp.ClientSession {
	t.Helper()
	var turn atomic.Int64
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(servers[turn.Add(1)%int64(len(servers))], "8765"))
	}}
	endpoint := "http://" + release + "." + namespace() + ".svc:8765/mcp"
	if res, err := (&http.Client{Transport: transport}).Post(endpoint, "application/json", strings.NewReader("{}")); err != nil || res.StatusCode != http.StatusUnauthorized { //nolint:bodyclose // connections are not kept
		t.Errorf("without a token: %+v, %v", res, err)
	}
	authorized := rig.Bearer{Token: token, Base: transport}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: &http.Client{Transport: authorized}}, nil)
	must(t, err)
	t.Cleanup(func() { _ = cs.Close() }) // after a failed test
	return cs
}

// call calls a tool, which must succeed.
func call(t *testing.T, client *mcp.ClientSession, tool string, in obj) obj {
	t.Helper()
	res, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: in})
	must(t, err)
	out, _ := res.StructuredContent.(obj)
	if res.IsError || out == nil {
		t.Fatalf("%s: %+v, %+v", tool, res.StructuredContent, res.Content)
	}
	return out
}

// gone waits until no object matches a selector.
func gone(t *testing.T, api *rest.Config, what, selector string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		left := objects(t, api, selector)
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is left: %v", what, left)
		}
	}
}

// objects lists the objects in the namespace, of the kinds that a chart or a sandbox has.
func objects(t *testing.T, api *rest.Config, selector string) (all []string) {
	t.Helper()
	for kind, group := range map[string]string{
		"pods": "/api/v1", "persistentvolumeclaims": "/api/v1", "services": "/api/v1", "configmaps": "/api/v1", "serviceaccounts": "/api/v1",
		"deployments": "/apis/apps/v1", "poddisruptionbudgets": "/apis/policy/v1", "roles": "/apis/rbac.authorization.k8s.io/v1", "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
	} {
		text, err := clustertest.Pods(api, "").GetClient().Get().AbsPath(group, "namespaces", namespace(), kind).Param("labelSelector", selector).DoRaw(t.Context())
		must(t, err)
		var list struct{ Items []any }
		must(t, json.Unmarshal(text, &list))
		if len(list.Items) > 0 {
			all = append(all, kind)
		}
	}
	return all
}
