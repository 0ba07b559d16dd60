//go:build linux

package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/httpconn"
	"github.com/workcell-dev/workcell/internal/llmtest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// model is a model for all dialects. If a request offers a tool whose name ends with tool and has no result of a call
// yet, the model calls the tool with args. Otherwise, it answers with text. Each answer reports 100 tokens of input and
// 10 of output.
type model struct {
	*llmtest.Server
	tool, args string
	text       string
	status     int    // status of every answer, if not zero
	thought    string // reasoning before the answer
	refuses    bool   // sends a refusal in the dialect
	again      bool   // calls the tool even if there is a result
}

// newModel returns a model that calls a tool with JSON arguments.
func newModel(tool, args, text string) *model {
	m := &model{tool: tool, args: args, text: text}
	m.Server = llmtest.New(m.answer)
	return m
}

// key is the key for all requests. Sandboxes see it instead of a real key.
const key = "wc-0123456789abcdef"

// keyOf returns the key of a request.
func keyOf(r llmtest.Request) string {
	return r.Header.Get("x-api-key") + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + r.Header.Get("x-goog-api-key")
}

func (m *model) answer(_ int, r llmtest.Request) llmtest.Answer {
	status := m.status
	if status == 0 && keyOf(r) != key {
		status = http.StatusUnauthorized
	}
	if status != 0 {
		return llmtest.Answer{Status: status, Text: "no", Header: http.Header{"X-Should-Retry": {"false"}}}
	}
	a := llmtest.Answer{Text: m.text, Thought: m.thought, Refused: m.refuses, Used: &llmtest.Usage{Input: 100, Output: 10}}
	if m.tool == "" || !m.again && len(r.Results()) > 0 {
		return a
	}
	for name := range r.Tools() {
		if strings.HasSuffix(name, m.tool) {
			a.Calls = []llmtest.Call{{Name: name, Input: json.RawMessage(m.args)}}
		}
	}
	return a
}

// seen reports whether a request contained text.
func (m *model) seen(text string) bool {
	for _, r := range m.Requests() {
		if bodyHas(r, text) {
			return true
		}
	}
	return false
}

func bodyHas(r llmtest.Request, text string) bool {
	body, err := json.Marshal(r.Body)
	return err == nil && bytes.Contains(body, []byte(text))
}

// serve makes the model available to commands on the sandbox's loopback interface, and returns the address there.
func (m *model) serve(t *testing.T, s *session.Session) string {
	t.Helper()
	addr, _, err := s.Serve(t.Context(), sandbox.Service{Name: "model", Handle: func(ctx context.Context, c *sandbox.ServiceConn) {
		httpconn.Serve(ctx, c, m, time.Minute)
	}})
	must(t, err)
	return "http://" + addr
}
