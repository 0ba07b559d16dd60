package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/httpguard"
)

const (
	headerVersion = "Mcp-Protocol-Version"
	headerSession = "Mcp-Session-Id"

	// firstStateless is the first revision without sessions. From this revision on, a server cannot send requests to the
	// client during a call. A question ends the request, and the client repeats the request with the answer.
	firstStateless = "2026-07-28"
)

// placeKey holds the *place of a new session. The SDK also sets it in the context of every later request of the
// session.
type placeKey struct{}

// post reads a message within the limits, answers invalid messages, and passes valid messages to the SDK.
func (h *httpHandler) post(w http.ResponseWriter, r *http.Request, client string) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		http.Error(w, "compressed requests are not supported", http.StatusUnsupportedMediaType)
		return
	}
	in := &meteredBody{Reader: http.MaxBytesReader(w, r.Body, MaxMessageBytes), limiter: h.limiter, client: client}
	defer in.free()
	body, ok := h.read(w, in, r.ContentLength)
	if !ok {
		return
	}
	version := r.Header.Get(headerVersion)
	msg, fault := decodeMessage(body)
	req, isCall := msg.(*jsonrpc.Request)
	stateless := version >= firstStateless || isCall && namesVersion(req)
	if isCall && !stateless && r.Header.Get(headerSession) == "" && needsSession(req) {
		fault = invalid("the header %s is missing; send %s first", headerSession, methodInitialize)
		fault.id = req.ID
	}
	if fault != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(faultStatus(fault, version))
		_, _ = w.Write(fault.encode()) // a disconnected client needs no answer
		return
	}
	if _, timeout := cancels(msg); timeout {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if isCall && req.Method == methodInitialize && r.Header.Get(headerSession) == "" {
		place, refusal := reserve(h.limiter, client)
		if refusal != nil {
			refusal.Write(w)
			return
		}
		defer place.done()
		r = r.WithContext(context.WithValue(r.Context(), placeKey{}, place))
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	if stateless {
		h.stateless.ServeHTTP(w, r)
	} else {
		h.legacy.ServeHTTP(w, r)
	}
}

// read returns the whole body. announced is the Content-Length, or -1 if unknown. If the body was refused, read answers
// the request and returns false.
func (h *httpHandler) read(w http.ResponseWriter, in *meteredBody, announced int64) (body []byte, ok bool) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(h.opts.BodyTimeout)) // always supported by the server's connections
	var refusal *httpguard.Refusal
	err := error(&http.MaxBytesError{Limit: MaxMessageBytes})
	if announced <= MaxMessageBytes {
		body, err = io.ReadAll(in)
	}
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		http.Error(w, fmt.Sprintf("the message is longer than %d bytes", MaxMessageBytes), http.StatusRequestEntityTooLarge)
		return nil, false
	case errors.As(err, &refusal):
		in.free()
		_, _ = io.Copy(io.Discard, in.Reader) // a client would not read the answer while it is sending
		refusal.Write(w)
		return nil, false
	case err != nil:
		http.Error(w, "the body is incomplete or was not received in time", http.StatusRequestTimeout)
		return nil, false
	case len(bytes.TrimSpace(body)) == 0:
		http.Error(w, "the body is empty", http.StatusBadRequest)
		return nil, false
	}
	_ = rc.SetReadDeadline(time.Time{}) // the answer may take long
	w.Header().Del("Connection")
	return body, true
}

// needsSession reports whether a request of a revision with sessions is impossible without one.
func needsSession(req *jsonrpc.Request) bool {
	return req.IsCall() && !slices.Contains([]string{methodInitialize, "ping", "server/discover"}, req.Method)
}

// namesVersion reports whether a request contains a protocol version, like requests of revisions without sessions.
func namesVersion(req *jsonrpc.Request) bool {
	var params struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	if json.Unmarshal(req.Params, &params) != nil {
		return false
	}
	_, ok := params.Meta[mcp.MetaKeyProtocolVersion]
	return ok
}

// faultStatus returns the HTTP status for a fault. Up to 2025-11-25, an unknown method is answered like any other valid
// request. Later revisions require status 404.
func faultStatus(fault *fault, version string) int {
	switch {
	case fault.code != jsonrpc.CodeMethodNotFound:
		return http.StatusBadRequest
	case version >= firstStateless:
		return http.StatusNotFound
	}
	return http.StatusOK
}
