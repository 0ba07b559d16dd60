package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	headerVersion = "Mcp-Protocol-Version"
	headerSession = "Mcp-Session-Id"

	// firstStateless is the first revision without sessions. From it on a server cannot ask while it works on a request: a
	// question ends the request, which the client makes again with the answer.
	firstStateless = "2026-07-28"
)

// placeKey holds the *place of the session that a request begins. The SDK makes it a value of every later request of
// the session, too.
type placeKey struct{}

// post reads a message within its bounds, answers what is wrong with it and passes it to the SDK.
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
	if fault != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(faultStatus(fault, version))
		_, _ = w.Write(fault.encode()) // a client that is gone needs no answer
		return
	}
	if _, timeout := cancels(msg); timeout {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	req, isCall := msg.(*jsonrpc.Request)
	if isCall && req.Method == methodInitialize && r.Header.Get(headerSession) == "" {
		place, no := h.limiter.reserve(client)
		if no != nil {
			no.write(w)
			return
		}
		defer place.done()
		r = r.WithContext(context.WithValue(r.Context(), placeKey{}, place))
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	if version >= firstStateless || isCall && namesVersion(req) {
		h.stateless.ServeHTTP(w, r)
	} else {
		h.legacy.ServeHTTP(w, r)
	}
}

// read returns the whole body, of which announced bytes are to come, -1 when nobody knows; false when it was refused.
func (h *httpHandler) read(w http.ResponseWriter, in *meteredBody, announced int64) (body []byte, ok bool) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(h.opts.BodyTimeout)) // every connection of ours has deadlines
	var no *refusal
	err := error(&http.MaxBytesError{Limit: MaxMessageBytes})
	if announced <= MaxMessageBytes {
		body, err = io.ReadAll(in)
	}
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		http.Error(w, fmt.Sprintf("the message is longer than %d bytes", MaxMessageBytes), http.StatusRequestEntityTooLarge)
		return nil, false
	case errors.As(err, &no):
		in.free()
		_, _ = io.Copy(io.Discard, in.Reader) // a client that is still sending would not see the answer
		no.write(w)
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

// namesVersion reports whether a request names its protocol version, as those of the era without sessions do.
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

// faultStatus returns the HTTP status of a fault. A request for a method that is not there is in order, so up to
// 2025-11-25 it has an answer like any other; later revisions want 404.
func faultStatus(fault *fault, version string) int {
	switch {
	case fault.code != jsonrpc.CodeMethodNotFound:
		return http.StatusBadRequest
	case version >= firstStateless:
		return http.StatusNotFound
	}
	return http.StatusOK
}

// pacedWriter ends the connection of a client that does not take its answer: every write has its own deadline, so that
// a stream may be open for hours and a stalled one ends.
type pacedWriter struct {
	http.ResponseWriter
	timeout time.Duration
}

func (w *pacedWriter) extend() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.timeout)) // every connection of ours has deadlines
}

// WriteHeader writes the head of the answer.
func (w *pacedWriter) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

// Write writes a piece of the answer.
func (w *pacedWriter) Write(p []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(p)
}

// FlushError sends what was written.
func (w *pacedWriter) FlushError() error {
	w.extend()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
