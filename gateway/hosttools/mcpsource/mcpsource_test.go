package mcpsource_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/hosttools/mcpsource"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/leaktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// asServer is the environment variable that makes the test binary run as an MCP server. Its value is "ok" or a
// reaction to a method: "exit METHOD", "hang METHOD", or "refuse METHOD".
const asServer = "MCPSOURCE_TEST_SERVER"

func TestMain(m *testing.M) {
	if behavior := os.Getenv(asServer); behavior != "" {
		fmt.Println("Server is running...")
		server := newServer()
		server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				switch behavior {
				case "exit " + method:
					os.Exit(1)
				case "hang " + method:
					<-ctx.Done()
				case "refuse " + method:
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no such method"}
				}
				return next(ctx, method, req)
			}
		})
		if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

type none struct{}

// newServer returns a server with tools that misbehave.
func newServer() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	text := func(s string) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
	}
	add := func(name string, do func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error)) {
		about := "with " + os.Getenv("TOKEN")
		mcp.AddTool(server, &mcp.Tool{Name: name, Description: about, InputSchema: map[string]any{"type": "object", "description": about}}, func(ctx context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, any, error) {
			res, err := do(ctx, req)
			return res, nil, err
		})
	}
	add("environ", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(strings.Join(os.Environ(), "\n")), nil
	})
	add("where", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		dir, err := os.Getwd()
		return text(dir), err
	})
	add("complain", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		fmt.Fprintln(os.Stderr, "the token is", os.Getenv("TOKEN"))
		fmt.Println("[INFO] the token is", os.Getenv("TOKEN"))
		return nil, errors.New("cannot log in with " + os.Getenv("TOKEN"))
	})
	add("traced", func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(fmt.Sprint(req.Params.Meta["traceparent"])), nil
	})
	add("precise", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{StructuredContent: json.RawMessage(preciseData)}, nil
	})
	add("die", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		os.Exit(3)
		return nil, nil
	})
	add("hang", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	add("large", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(strings.Repeat("x", 100<<20)), nil
	})
	add("big", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(strings.Repeat("x", 5<<20)), nil
	})
	add("flood", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		out := bufio.NewWriter(os.Stdout)
		line := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + strings.Repeat("x", 64<<10) + "\"}}\n"
		for range 1 << 10 { // 64 MiB of messages, then a message without an end
			_, _ = out.WriteString(line) // Flush returns the error
		}
		for range 16 << 10 { // 1 GiB
			if _, err := out.WriteString(line[:64<<10]); err != nil {
				return nil, err
			}
		}
		return text("flooded"), out.Flush()
	})
	add("grow", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		add("grown", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return text("grown"), nil })
		return text("ok"), nil
	})
	add("sample", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_, sampled := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 1}) //nolint:staticcheck // a server of old asks
		_, rooted := req.Session.ListRoots(ctx, nil)                                         //nolint:staticcheck // as above
		return text(fmt.Sprintf("%t %t", sampled != nil, rooted != nil)), nil
	})
	if dir := os.Getenv("STARTED"); dir != "" && os.Mkdir(dir, 0o700) != nil { // not the first start
		add("added", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return text("added"), nil })
	}
	return server
}

const token = "tok-8c1d0f5e6b"

func program(t *testing.T, change func(*mcpsource.Server)) (hosttools.Source, *buffertest.Buffer) {
	t.Helper()
	self, err := os.Executable()
	checktest.Must(t, err)
	server := mcpsource.Server{Name: "test", Command: []string{self}, Env: map[string]mcpsource.Secret{
		asServer: mcpsource.NewSecret("ok"), "TOKEN": mcpsource.NewSecret(token),
	}}
	if change != nil {
		change(&server)
	}
	log := &buffertest.Buffer{}
	s := mcpsource.New(server, &mcpsource.Options{Log: slog.New(slog.NewTextHandler(log, nil)), Environ: []string{"LANG=C"}})
	t.Cleanup(func() { s.Close() })
	return s, log
}

// TestStartsBesideItsFile verifies that a program starts in the directory of the operator's file, not in the directory
// of a link to it. Relative commands are resolved there. The working directory may be a hostile repository with modules
// for python -m.
func TestStartsBesideItsFile(t *testing.T) {
	own, repository := t.TempDir(), t.TempDir()
	self, err := os.Executable()
	file := filepath.Join(own, "tools.yaml")
	checktest.Must(t, errors.Join(err, os.Symlink(self, filepath.Join(own, "server")), os.WriteFile(filepath.Join(repository, "server"), []byte("#!/bin/false"), 0o700),
		os.WriteFile(file, []byte("servers: {local: {command: [./server], env: {"+asServer+": '1'}}}"), 0o600)))
	t.Chdir(repository)
	relative, err := filepath.Rel(repository, file)
	checktest.Must(t, errors.Join(err, os.Symlink(relative, "link.yaml")))
	config, err := mcpsource.ReadConfig("link.yaml", os.LookupEnv)
	checktest.Must(t, err)
	withoutFile := config.Servers[0]
	withoutFile.Command, withoutFile.Dir = []string{self}, ""
	for want, server := range map[string]mcpsource.Server{own: config.Servers[0], string(filepath.Separator): withoutFile} {
		s := mcpsource.New(server, nil)
		if res, err := call(t, s, "where"); err != nil || res.Text != want {
			t.Errorf("started in %v, %v, want %s", res, err, want)
		}
		s.Close()
	}
}

// call calls a tool of a source.
func call(t *testing.T, s hosttools.Source, name string) (hosttools.Result, error) {
	t.Helper()
	tools, err := s.Tools(t.Context())
	checktest.Must(t, err)
	for _, tool := range tools {
		if tool.Name == name {
			return tool.Handle(t.Context(), hosttools.Call{Args: json.RawMessage("{}")})
		}
	}
	t.Fatalf("there is no tool %s", name)
	return hosttools.Result{}, nil
}

func code(err error) toolspec.Code {
	var e *hosttools.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Code
}

func TestProgramHasItsOwnEnvironmentOnly(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "1")
	s, _ := program(t, nil)
	res, err := call(t, s, "environ")
	if err != nil || strings.Contains(res.Text, "SECRET_OF_THE_HOST") || !strings.Contains(res.Text, "LANG=C") || !strings.Contains(res.Text, "TOKEN="+token) {
		t.Errorf("environment %q, %v", res.Text, err)
	}
}

func TestSecretsStay(t *testing.T) {
	t.Parallel()
	s, log := program(t, nil)
	res, err := call(t, s, "complain")
	if err != nil || !res.Failed || res.Text != "cannot log in with [redacted]" {
		t.Errorf("%+v, %v", res, err)
	}
	tools, err := s.Tools(t.Context())
	if def := fmt.Sprint(tools[0].Definition); err != nil || !strings.Contains(def, "with [redacted]") || strings.Contains(def, token) {
		t.Errorf("the first tool is %s, %v", def, err)
	}
	s.Close() // afterwards, all output of the program is logged
	text := log.String()
	if strings.Contains(text, token) {
		t.Errorf("the log has the secret:\n%s", text)
	}
	for _, want := range []string{`stderr="the token`, `stdout="Server is running`, `stdout="[INFO] the token`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has no %s:\n%s", want, text)
		}
	}
}

// TestServerThatDiesIsStartedAgainThreeTimes also verifies that a caller that does not wait for a restart does not use
// up a restart.
func TestServerThatDiesIsStartedAgainThreeTimes(t *testing.T) {
	t.Parallel()
	s, _ := program(t, func(s *mcpsource.Server) { s.Timeout = time.Minute })
	list, err := s.Tools(t.Context())
	checktest.Must(t, err)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 4 {
		if _, err := call(t, s, "die"); code(err) != toolspec.CodeToolFailed {
			t.Fatalf("a call of a server that dies: %v", err)
		}
		for range 3 {
			if _, err := list[0].Handle(over, hosttools.Call{Args: json.RawMessage("{}")}); err == nil {
				t.Error("a call that is over succeeded")
			}
		}
	}
	if _, err := s.Tools(t.Context()); !strings.HasPrefix(toolspec.ErrorOf(err).Remediation, "Continue") {
		t.Errorf("after three restarts: %v", err)
	}
}

// TestProgramsOfAllRevisions verifies that programs without support for some revisions start.
func TestProgramsOfAllRevisions(t *testing.T) {
	t.Parallel()
	for _, behavior := range []string{"exit server/discover", "hang server/discover", "refuse initialize"} {
		s, _ := program(t, func(s *mcpsource.Server) { s.Env[asServer] = mcpsource.NewSecret(behavior) })
		if _, err := call(t, s, "environ"); err != nil {
			t.Errorf("%s: %v", behavior, err)
		}
	}
}

// preciseData has numbers that are not exact in float64.
const preciseData = `{"a":"<","id":1234567890123456789,"more":[0.1000000000000000055]}`

// TestExactNumbers verifies that a program's and an HTTP server's numbers are not rounded.
func TestExactNumbers(t *testing.T) {
	t.Parallel()
	p, _ := program(t, nil)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return newServer() }, nil)
	web := httptest.NewServer(handler)
	t.Cleanup(web.Close)
	h := mcpsource.New(mcpsource.Server{Name: "web", URL: web.URL}, nil)
	t.Cleanup(func() { h.Close() })
	for _, s := range []hosttools.Source{p, h} {
		res, err := call(t, s, "precise")
		if got := strings.ReplaceAll(string(res.Data), `\u003c`, "<"); err != nil || got != preciseData {
			t.Errorf("%s, %v", got, err)
		}
	}
}

func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	s, _ := program(t, func(s *mcpsource.Server) { s.Timeout = 15 * time.Second })
	if _, err := call(t, s, "hang"); !strings.HasPrefix(toolspec.ErrorOf(err).Remediation, "Request less") {
		t.Errorf("a call of a server that hangs: %v", err)
	}
	if _, err := call(t, s, "environ"); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// TestServerThatFloods verifies that a server cannot fill the host's memory with its messages.
func TestServerThatFloods(t *testing.T) {
	for name, want := range map[string]toolspec.Code{"large": toolspec.CodeTooLarge, "flood": toolspec.CodeToolFailed} {
		t.Run(name, func(t *testing.T) {
			s, _ := program(t, func(s *mcpsource.Server) { s.Timeout = 2 * time.Minute })
			if _, err := s.Tools(t.Context()); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := call(t, s, name); code(err) != want {
				t.Errorf("%v", err)
			}
			runtime.ReadMemStats(&after)
			// Messages wait for the busy host, and garbage waits for its collection. The memory may grow by all 64 MiB, but not
			// by 1 GiB.
			if grown := int64(after.Sys) - int64(before.Sys); grown > 256<<20 {
				t.Errorf("the memory of the host has grown by %d MiB", grown>>20)
			}
		})
	}
}

// TestTooLargeAnswer verifies that an answer that is too large fails only its call, any number of times.
func TestTooLargeAnswer(t *testing.T) {
	t.Parallel()
	s, log := program(t, nil)
	for range 5 {
		if _, err := call(t, s, "big"); code(err) != toolspec.CodeTooLarge || !strings.Contains(err.Error(), "larger than 4 MiB") {
			t.Fatal(err)
		}
	}
	if _, err := call(t, s, "environ"); err != nil || strings.Contains(log.String(), "server exited") {
		t.Errorf("the next call: %v\n%s", err, log)
	}
}

func TestListIsFrozenUntilItIsAskedForAgain(t *testing.T) {
	t.Parallel()
	s, _ := program(t, nil)
	before, err := s.Tools(t.Context())
	checktest.Must(t, err)
	if _, err := call(t, s, "grow"); err != nil {
		t.Fatal(err)
	}
	for t.Context().Err() == nil {
		// The arrival time of the notification is unknown; the test's time limit bounds the wait.
		after, err := s.Tools(t.Context())
		checktest.Must(t, err)
		if len(after) == len(before)+1 {
			return
		}
		runtime.Gosched()
	}
	t.Error("the new tool is not listed")
}

func TestServerGetsNothingItAsksFor(t *testing.T) {
	t.Parallel()
	s, _ := program(t, nil)
	res, err := call(t, s, "sample")
	if err != nil || res.Text != "true true" {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestPin(t *testing.T) {
	t.Parallel()
	s, _ := program(t, nil)
	tools, err := s.Tools(t.Context())
	checktest.Must(t, err)
	digest, err := hosttools.Digest(tools)
	checktest.Must(t, err)
	pinned, _ := program(t, func(s *mcpsource.Server) {
		s.Pin, s.Env["STARTED"] = "sha256:"+digest, mcpsource.NewSecret(filepath.Join(t.TempDir(), "started"))
	})
	if tools, err = pinned.Tools(t.Context()); err != nil {
		t.Fatalf("with its own digest: %v", err)
	}
	if _, err := call(t, pinned, "die"); code(err) != toolspec.CodeToolFailed {
		t.Error(err)
	}
	for _, tool := range tools { // none exits, because the server has another digest now
		_, err := tool.Handle(t.Context(), hosttools.Call{Args: json.RawMessage("{}")})
		if code(err) != toolspec.CodeUnavailable || !strings.Contains(err.Error(), "pinned digest") {
			t.Fatalf("%s after a restart with other tools: %v", tool.Name, err)
		}
	}
	other, _ := program(t, func(s *mcpsource.Server) { s.Pin = "sha256:" + strings.Repeat("0", 64) })
	if _, err := other.Tools(t.Context()); code(err) != toolspec.CodeUnavailable || !strings.Contains(err.Error(), digest) {
		t.Errorf("with another digest: %v", err)
	}
}

// TestWhyServerDoesNotStart verifies that the operator's error contains the cause, and the error for models does not.
func TestWhyServerDoesNotStart(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*mcpsource.Server){
		"/no/such/program": func(s *mcpsource.Server) { s.Command = []string{"/no/such/program"} },
		"exit status 7; its last output: Error: no module foo, [redacted]": func(s *mcpsource.Server) {
			s.Command = []string{"sh", "-c", "echo Error: no module foo, $TOKEN >&2; exit 7"}
		},
		"deadline exceeded; its last output: waiting": func(s *mcpsource.Server) {
			s.Command, s.Timeout = []string{"sh", "-c", "echo waiting >&2; exec sleep 1000"}, time.Second
		},
		"connection refused": func(s *mcpsource.Server) { s.Command, s.URL = nil, "http://127.0.0.1:1/mcp" },
	} {
		s, _ := program(t, change)
		_, err := s.Tools(t.Context())
		if code(err) != toolspec.CodeUnavailable || !strings.Contains(err.Error(), want) || strings.Contains(toolspec.ErrorOf(err).Message, want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	auth := map[string]bool{}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return newServer() }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		auth[r.Header.Get("Authorization")] = true
		mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	moved := httptest.NewServer(http.RedirectHandler(web.URL, http.StatusTemporaryRedirect))
	t.Cleanup(moved.Close)
	source := func(url string) hosttools.Source {
		s := mcpsource.New(mcpsource.Server{Name: "web", URL: url, Headers: map[string]mcpsource.Secret{"Authorization": mcpsource.NewSecret("Bearer " + token)}},
			&mcpsource.Options{Log: slog.New(slog.DiscardHandler)})
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := source(web.URL)
	if res, err := call(t, s, "grow"); err != nil || res.Text != "ok" {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := call(t, s, "big"); code(err) != toolspec.CodeTooLarge {
		t.Errorf("5 MiB: %v", err)
	}
	if _, err := call(t, s, "grow"); err != nil {
		t.Errorf("the next call: %v", err)
	}
	mu.Lock()
	if !auth["Bearer "+token] || len(auth) != 1 {
		t.Errorf("headers %v", auth)
	}
	mu.Unlock()
	if _, err := source(moved.URL).Tools(t.Context()); err == nil {
		t.Error("a redirect is followed")
	}
}
