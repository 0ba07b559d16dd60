package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"strings"
	"time"
)

// toolPatience is the maximum wait for an unavailable host.
const toolPatience = 30 * time.Second

// toolFailure is the error of a call for code in the sandbox.
type toolFailure struct {
	Code           string `json:"code"`
	Message        string `json:"message"`
	Remediation    string `json:"remediation,omitempty"`
	Retryable      bool   `json:"retryable"`
	OutcomeUnknown bool   `json:"outcome_unknown,omitempty"` // the connection broke, so the tool may or may not have run
}

func (f *toolFailure) Error() string { return f.Code + ": " + f.Message }

// toolConn is a connection to the host for newline-delimited JSON-RPC, with one request at a time.
type toolConn struct {
	net.Conn
	r  *bufio.Reader
	id int
}

// rpcError is the error in an answer.
type rpcError struct {
	Code    int          `json:"code"`
	Message string       `json:"message"`
	Data    *toolFailure `json:"data"`
}

func (e *rpcError) failure() *toolFailure {
	f := &toolFailure{Code: "internal"}
	if e.Data != nil && e.Data.Code != "" {
		f = e.Data
	}
	switch {
	case f.Code != "internal":
	case e.Code == -32601:
		f.Code = "not_found"
	case e.Code == -32602:
		f.Code = "invalid_argument"
	}
	f.Message = e.Message
	return f
}

// request connects and sends one request of the revision without a handshake. A zero end means no time limit.
func (c *toolsCommand) request(method string, params, meta map[string]any, end time.Time, result any) error {
	conn, err := c.connect(end)
	if err != nil {
		return err
	}
	defer conn.Close()
	all := map[string]any{
		"io.modelcontextprotocol/protocolVersion":    "2026-07-28",
		"io.modelcontextprotocol/clientInfo":         map[string]string{"name": "workcell-tools", "version": version},
		"io.modelcontextprotocol/clientCapabilities": map[string]any{},
	}
	maps.Copy(all, meta)
	if c.trace != "" {
		all["traceparent"] = c.trace
	}
	params["_meta"] = all
	err = conn.request(method, params, result)
	switch {
	case err == nil || errors.As(err, new(*toolFailure)):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &toolFailure{Code: "timeout", Message: "no answer within --timeout",
			Remediation: "Pass a larger --timeout, or do less in a call."}
	}
	return &toolFailure{Code: "unavailable", Message: "lost the connection to the host during the call: " + err.Error(),
		Remediation: "Find out whether the call took effect before repeating it.", OutcomeUnknown: true}
}

// connect returns a connection on which the host has answered.
func (c *toolsCommand) connect(end time.Time) (*toolConn, error) {
	if !strings.HasPrefix(c.address, "@") {
		return nil, &toolFailure{Code: "unavailable", Message: "this command has no host tools",
			Remediation: "Continue without them, and mention it in the answer."}
	}
	until := time.Now().Add(toolPatience)
	own := !end.IsZero() && end.Before(until)
	if own {
		until = end
	}
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		conn, err := dialHost(c.address, until)
		switch {
		case err == nil:
			return conn, conn.SetDeadline(end)
		case time.Now().Add(pause).Before(until):
			time.Sleep(pause)
		case own:
			return nil, &toolFailure{Code: "timeout", Message: "could not reach the host within --timeout", Retryable: true}
		default:
			return nil, &toolFailure{Code: "unavailable", Message: "cannot reach the host: " + err.Error(),
				Remediation: "Try again later.", Retryable: true}
		}
	}
}

// dialHost connects and sends a ping, because the sandbox accepts connections even while the host is unavailable.
func dialHost(address string, until time.Time) (*toolConn, error) {
	conn, err := dialTools(address)
	if err != nil {
		return nil, err
	}
	t := &toolConn{Conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}
	if err = conn.SetDeadline(until); err == nil {
		err = t.request("ping", map[string]any{}, nil)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return t, nil
}

func (t *toolConn) request(method string, params map[string]any, result any) error {
	t.id++
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": t.id, "method": method, "params": params})
	if err != nil {
		return err
	}
	if _, err := t.Write(append(b, '\n')); err != nil {
		return err
	}
	for {
		line, err := t.r.ReadBytes('\n')
		if err != nil {
			return err
		}
		var a struct {
			ID     *int            `json:"id"`
			Method string          `json:"method"`
			Result json.RawMessage `json:"result"`
			Error  *rpcError       `json:"error"`
		}
		switch err := json.Unmarshal(line, &a); {
		case err != nil:
			return fmt.Errorf("the host's answer: %w", err)
		case a.ID == nil || *a.ID != t.id || a.Method != "": // not the answer to the request
		case a.Error != nil:
			return a.Error.failure()
		case result == nil:
			return nil
		default:
			return json.Unmarshal(a.Result, result)
		}
	}
}
