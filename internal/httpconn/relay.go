package httpconn

import (
	"context"
	"encoding/base64"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// NewTransport returns a transport for requests whose answers are looked at: it asks for no compression, which would
// also hold back streams.
func NewTransport() http.RoundTripper {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		t = &http.Transport{}
	}
	t = t.Clone()
	t.DisableCompression, t.MaxResponseHeaderBytes = true, maxHeader
	return t
}

// Relay sends requests from a sandbox to a server chosen by the host. It follows no redirect.
type Relay struct {
	Transport http.RoundTripper
	// Rewrite returns the address and all headers of the outgoing request. Nothing else of the sandbox's header passes.
	Rewrite func(in *http.Request) (*url.URL, http.Header)
	// Answer checks and changes the answer. Failed answers if it returns an error or the server does not answer.
	Answer func(*http.Response) error
	Failed func(http.ResponseWriter, *http.Request, error)
}

// ServeHTTP sends a request, which may have another body and context than the incoming request.
func (x Relay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL, pr.Out.Header = x.Rewrite(pr.In)
			pr.Out.Host, pr.Out.Trailer, pr.Out.TransferEncoding = "", nil, nil
		},
		Transport: x.Transport, FlushInterval: -1, ModifyResponse: x.Answer, ErrorHandler: x.Failed,
		ErrorLog: log.New(io.Discard, "", 0), // of ended connections; Failed gets errors of the server
	}
	ended := false
	defer func() {
		if !ended { // the answer breaks off, possibly before its first byte
			_ = http.NewResponseController(w).Flush() // the client may have gone
		}
	}()
	proxy.ServeHTTP(finalOnly{w}, r)
	ended = true
	// Trailers may name the account.
	maps.DeleteFunc(w.Header(), func(name string, _ []string) bool {
		return strings.HasPrefix(name, http.TrailerPrefix)
	})
}

// finalOnly drops informational answers such as 103, which come before the answer, with whatever headers a server gives
// them.
type finalOnly struct{ http.ResponseWriter }

func (w finalOnly) WriteHeader(status int) {
	if status >= http.StatusOK {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap lets [http.ResponseController] flush.
func (w finalOnly) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// EndWith interrupts the reads and writes of a request when ctx ends, because a program can send or read nothing for
// as long as it wants. The caller calls stop when the request has been answered.
func EndWith(ctx context.Context, w http.ResponseWriter) (stop func() bool) {
	rc := http.NewResponseController(w)
	return context.AfterFunc(ctx, func() {
		_ = rc.SetWriteDeadline(time.Unix(1, 0)) // connections have deadlines
		_ = rc.SetReadDeadline(time.Unix(1, 0))
	})
}

// MinSecret is the length in bytes of the shortest credential to remove from answers. Servers without keys get any
// word, such as "x" or "none", and removing its letters would damage every answer.
const MinSecret = 8

// Secrets returns the values of headers with credentials, and parts of these values, in the forms in which a server may
// quote them: unchanged, without their scheme, in lower case, and in base64, even of a longer text. The password of the
// scheme Basic and the values of cookies count too.
func Secrets(headers http.Header, parts ...string) sanitize.Secrets {
	var words []string
	add := func(text string) {
		if text = strings.TrimSpace(text); len(text) < MinSecret { // space around a value is not sent
			return
		}
		words = append(words, text, strings.ToLower(text)) // header names have no case
		// Bytes before text, modulo 3. The characters at both ends depend on other bytes.
		for before := range 3 {
			for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				encoded := encoding.EncodeToString(append(make([]byte, before), text...))
				words = append(words, encoded[(before*8+5)/6:(before+len(text))*8/6])
			}
		}
	}
	for _, c := range (&http.Request{Header: headers}).Cookies() {
		add(c.Value)
	}
	for _, part := range parts {
		add(part)
	}
	for _, values := range headers {
		for _, v := range values {
			add(v)
			scheme, text, _ := strings.Cut(strings.TrimSpace(v), " ")
			if add(text); strings.EqualFold(scheme, "basic") {
				pair, _ := base64.StdEncoding.DecodeString(strings.TrimSpace(text)) // then there is no password
				_, password, _ := strings.Cut(string(pair), ":")
				add(string(pair))
				add(password)
			}
		}
	}
	slices.Sort(words)
	return sanitize.NewSecrets("[key]", slices.Compact(words)...)
}
