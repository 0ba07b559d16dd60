package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"time"

	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/sandbox"
)

// pythonModel sends streaming requests to a model and prints the median time to the first line of an answer.
const pythonModel = `
import http.client, json, sys, time, urllib.parse
N, KEY, BASE = int(sys.argv[1]), sys.argv[2], urllib.parse.urlsplit(sys.argv[3])
BODY = json.dumps({"model": "bench", "stream": True, "messages": [{"role": "user", "content": "x" * 4000}]})
conn = http.client.HTTPConnection(BASE.netloc)
first = []
for i in range(N + 5):
    began = time.time_ns()
    conn.request("POST", BASE.path + "/v1/messages", BODY, {"x-api-key": KEY, "content-type": "application/json"})
    answer = conn.getresponse()
    if answer.status != 200: sys.exit(answer.read())
    seen = answer.readline() and time.time_ns() - began
    answer.read()
    if i >= 5: first.append(seen)
print(json.dumps({"model_first_p50_ms": sorted(first)[len(first) // 2] / 1e6}))
`

// clockwork is a model that streams its answers slowly.
func clockwork(w http.ResponseWriter, _ *http.Request) {
	const chunks, pause = 10, 2 * time.Millisecond
	w.Header().Set("Content-Type", "text/event-stream")
	for range chunks {
		fmt.Fprint(w, "data: {\"delta\":\"a word or two of an answer\"}\n\n")
		_ = http.NewResponseController(w).Flush() // the client detects missing data
		time.Sleep(pause)                         // like a real model
	}
}

// measureModel measures answers of a model for a program in a sandbox, which uses the model proxy. It takes turns with
// the same program on the host, which sends requests directly.
func (c *contest) measureModel(ctx context.Context) (err error) {
	server := httptest.NewServer(http.HandlerFunc(clockwork))
	defer server.Close()
	base, err := url.Parse(server.URL)
	if err != nil {
		return err
	}
	proxy, err := model.New([]model.Provider{{Name: "bench", Dialects: []model.Dialect{model.Anthropic}, Base: base}}, nil)
	if err != nil {
		return err
	}
	lease, err := proxy.Issue(model.Grant{Provider: "bench", Models: []string{"bench"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Close()) }()
	n := fmt.Sprint(max(100*c.opts.scale/100, 10))
	return c.addedTo("model_first_p50_ms", "model_first_added_ms", func(b *contender) (got map[string]float64, err error) {
		var out []byte
		if b.session == nil {
			out, err = exec.CommandContext(ctx, "python3", "-c", pythonModel, n, "none", server.URL).Output()
		} else {
			out, err = askModel(ctx, proxy, b, lease.Key(), n)
		}
		if err == nil {
			err = json.Unmarshal(out, &got)
		}
		return got, err
	})
}

// askModel runs the program in a sandbox.
func askModel(ctx context.Context, proxy *model.Proxy, b *contender, key, n string) ([]byte, error) {
	at, err := proxy.Attach(ctx, b.session.Sandbox)
	if err != nil {
		return nil, err
	}
	res, err := b.session.Exec(ctx, sandbox.ExecRequest{Argv: []string{"python3", "-c", pythonModel, n, key, at.BaseURL("bench")}, Timeout: 5 * time.Minute})
	if err == nil && (res.ExitCode != 0 || res.Status != sandbox.ExecCompleted) {
		err = fmt.Errorf("a program that asks a model: %s, exit code %d: %s", res.Status, res.ExitCode, res.Stderr.Bytes())
	}
	if err != nil {
		return nil, err
	}
	return res.Stdout.Bytes(), nil
}
