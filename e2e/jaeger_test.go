package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// jaeger is a private Jaeger: OTLP in, query API out, on ports of its own.
type jaeger struct {
	otlp  string // host:port of OTLP over gRPC
	query string // base URL of the query API
}

func startJaeger(t *testing.T) *jaeger {
	t.Helper()
	out, err := exec.Command(filepath.Join(root(t), "hack", "jaeger.sh"), "path").Output()
	if err != nil {
		t.Fatalf("hack/jaeger.sh path: %v", err)
	}
	ports := freePorts(t, 5)
	cmd := exec.Command(strings.TrimSpace(string(out)), "--config", filepath.Join(root(t), "e2e", "jaeger", "config.yaml"))
	cmd.Env = os.Environ()
	for i, name := range []string{"OTLP_GRPC", "OTLP_HTTP", "QUERY", "QUERY_GRPC", "HEALTH"} {
		cmd.Env = append(cmd.Env, fmt.Sprintf("JAEGER_%s_PORT=%d", name, ports[i]))
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "jaeger.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // ended by our signal
		log.Close()
	})
	j := &jaeger{otlp: fmt.Sprintf("127.0.0.1:%d", ports[0]), query: fmt.Sprintf("http://127.0.0.1:%d", ports[2])}
	eventually(t, 30*time.Second, "Jaeger answers", func() error {
		resp, err := http.Get(j.query + "/api/services")
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
	return j
}

// freePorts gives n ports that were free a moment ago.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// span is a span as Jaeger's query API returns it.
type span struct {
	ID         string `json:"spanID"`
	TraceID    string `json:"traceID"`
	Name       string `json:"operationName"`
	Start      int64  `json:"startTime"`
	References []struct {
		Type   string `json:"refType"`
		SpanID string `json:"spanID"`
	} `json:"references"`
	Tags []struct {
		Key   string `json:"key"`
		Value any    `json:"value"`
	} `json:"tags"`
}

func (s *span) parent() string {
	for _, ref := range s.References {
		if ref.Type == "CHILD_OF" {
			return ref.SpanID
		}
	}
	return ""
}

func (s *span) tag(key string) string {
	for _, tag := range s.Tags {
		if tag.Key == key {
			return fmt.Sprint(tag.Value)
		}
	}
	return ""
}

// traceTree is one trace with its parent links resolved.
type traceTree struct {
	spans []*span
	byID  map[string]*span
}

// trace waits until the trace is there with no span's parent missing.
func (j *jaeger) trace(t *testing.T, id string) *traceTree {
	t.Helper()
	var tree *traceTree
	eventually(t, 30*time.Second, "trace "+id+" is complete", func() (err error) {
		tree, err = j.fetch(t.Context(), id)
		return err
	})
	return tree
}

func (j *jaeger) fetch(ctx context.Context, id string) (*traceTree, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, j.query+"/api/traces/"+id, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Data []struct {
			Spans []*span `json:"spans"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if len(answer.Data) != 1 {
		return nil, fmt.Errorf("%d traces", len(answer.Data))
	}
	tree := &traceTree{spans: answer.Data[0].Spans, byID: map[string]*span{}}
	slices.SortFunc(tree.spans, func(a, b *span) int { return int(a.Start - b.Start) })
	for _, s := range tree.spans {
		tree.byID[s.ID] = s
	}
	for _, s := range tree.spans {
		if p := s.parent(); p != "" && tree.byID[p] == nil {
			return nil, fmt.Errorf("span %s has no parent yet", s.Name)
		}
	}
	return tree, nil
}

func (tr *traceTree) named(name string) []*span {
	var found []*span
	for _, s := range tr.spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// above gives the names of a span's ancestors, the nearest first.
func (tr *traceTree) above(s *span) []string {
	var names []string
	for p := tr.byID[s.parent()]; p != nil; p = tr.byID[p.parent()] {
		names = append(names, p.Name)
	}
	return names
}

// roots gives the spans without a parent.
func (tr *traceTree) roots() []*span {
	var found []*span
	for _, s := range tr.spans {
		if s.parent() == "" {
			found = append(found, s)
		}
	}
	return found
}

// String draws the tree, equal siblings folded.
func (tr *traceTree) String() string {
	children := map[string][]*span{}
	for _, s := range tr.spans {
		children[s.parent()] = append(children[s.parent()], s)
	}
	var b strings.Builder
	var draw func(id string, depth int)
	draw = func(id string, depth int) {
		for _, s := range children[id] {
			fmt.Fprintf(&b, "%s%s\n", strings.Repeat("  ", depth), s.Name)
			draw(s.ID, depth+1)
		}
	}
	draw("", 0)
	return b.String()
}
