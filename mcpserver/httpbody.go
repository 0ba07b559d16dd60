package mcpserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	headerVersion = "Mcp-Protocol-Version"
	headerSession = "Mcp-Session-Id"

	// firstStateless is the first revision without sessions.
	firstStateless = "2026-07-28"
)

// post reads a message within its bounds, answers what is wrong with it and hands it to the SDK.
func (h *httpHandler) post(w http.ResponseWriter, r *http.Request, client string) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		http.Error(w, "compressed requests are not supported", http.StatusUnsupportedMediaType)
		return
	}
	in := &meteredBody{Reader: http.MaxBytesReader(w, r.Body, MaxMessageBytes), limiter: h.limiter, client: client}
	defer in.free()
	body, ok := h.read(w, in)
	if !ok {
		return
	}
	msg, fault := decodeMessage(body)
	if fault != nil {
		writeFault(w, faultStatus(fault, r.Header.Get(headerVersion)), fault)
		return
	}
	r, done, ok := h.reserveSession(w, r, client, msg)
	if !ok {
		return
	}
	defer done()
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	h.wire(r.Header.Get(headerVersion), namesVersion(msg)).ServeHTTP(w, r)
}

// read returns the whole body; false when it was refused.
func (h *httpHandler) read(w http.ResponseWriter, in *meteredBody) ([]byte, bool) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(h.opts.BodyTimeout)) // every connection of ours has deadlines
	body, err := io.ReadAll(in)
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		http.Error(w, fmt.Sprintf("the message is longer than %d bytes", MaxMessageBytes), http.StatusRequestEntityTooLarge)
		return nil, false
	case errors.Is(err, errNoRoom):
		in.free()
		_, _ = io.Copy(io.Discard, in.Reader) // a client that is still sending would not see the answer
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return nil, false
	case err != nil:
		http.Error(w, "the body did not come in time, or not whole", http.StatusRequestTimeout)
		return nil, false
	}
	_ = rc.SetReadDeadline(time.Time{}) // the answer may take long
	w.Header().Del("Connection")
	if len(bytes.TrimSpace(body)) == 0 {
		http.Error(w, "the body is empty", http.StatusBadRequest)
		return nil, false
	}
	return body, true
}

// wire chooses the era that a request speaks: by its header, or by the version in its message.
func (h *httpHandler) wire(version string, inMessage bool) http.Handler {
	if version >= firstStateless || inMessage {
		return h.stateless
	}
	return h.legacy
}

// namesVersion reports whether a request names its protocol version, as those of the era without sessions do.
func namesVersion(msg jsonrpc.Message) bool {
	req, ok := msg.(*jsonrpc.Request)
	if !ok {
		return false
	}
	var params struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	if json.Unmarshal(req.Params, &params) != nil {
		return false
	}
	_, ok = params.Meta[mcp.MetaKeyProtocolVersion]
	return ok
}

// faultStatus returns the HTTP status of a fault. A request for a method that is not there is in order, so up to 2025-11-25
// it has an answer like any other; later revisions want 404.
func faultStatus(fault *fault, version string) int {
	switch {
	case fault.code != jsonrpc.CodeMethodNotFound:
		return http.StatusBadRequest
	case version >= firstStateless:
		return http.StatusNotFound
	}
	return http.StatusOK
}

func writeFault(w http.ResponseWriter, status int, fault *fault) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(fault.encode()) // a client that is gone needs no answer
}

// pacedWriter returns up on a client that does not take its answer: every write has its own deadline, so that a stream may
// be open for hours and a stalled one ends.
type pacedWriter struct {
	http.ResponseWriter
	timeout time.Duration
}

// WriteHeader writes the head of the answer.
func (w *pacedWriter) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

func (w *pacedWriter) extend() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.timeout)) // every connection of ours has deadlines
}

func (w *pacedWriter) Write(p []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(p)
}

// Flush sends what was written.
func (w *pacedWriter) Flush() {
	w.extend()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // a client that is gone shows at the next write
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// errorLog returns a log for what net/http reports of bad connections, which is about clients, not about this server.
func errorLog(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }
