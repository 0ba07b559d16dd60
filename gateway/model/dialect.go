package model

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Dialect is the protocol of a model API.
type Dialect string

// Supported dialects.
const (
	Anthropic       Dialect = "anthropic"        // POST /v1/messages
	OpenAIResponses Dialect = "openai-responses" // POST /v1/responses
	OpenAIChat      Dialect = "openai-chat"      // POST /v1/chat/completions
	Gemini          Dialect = "gemini"           // POST /v1beta/models/MODEL:generateContent
)

// kind is the type of a request.
type kind int

const (
	generate kind = iota // runs a model; the answer is metered
	count                // counts tokens of a request, which is free
	list                 // lists models, or describes one
)

// route is an allowed request.
type route struct {
	dialect  Dialect
	kind     kind
	model    string // from the path
	upstream string // path relative to the provider's base URL
}

var modelName = regexp.MustCompile(`\A[A-Za-z0-9][A-Za-z0-9._-]{0,127}\z`)

// routes are the allowed requests. A star in a path stands for the name of a model.
var routes = []struct {
	dialect      Dialect
	kind         kind
	method, path string
}{
	{Anthropic, generate, http.MethodPost, "/v1/messages"},
	{Anthropic, count, http.MethodPost, "/v1/messages/count_tokens"},
	{Anthropic, list, http.MethodGet, "/v1/models"},
	{Anthropic, list, http.MethodGet, "/v1/models/*"},
	{OpenAIResponses, generate, http.MethodPost, "/responses"},
	{OpenAIResponses, list, http.MethodGet, "/models"},
	{OpenAIChat, generate, http.MethodPost, "/chat/completions"},
	{OpenAIChat, list, http.MethodGet, "/models"},
	{Gemini, generate, http.MethodPost, "/v1beta/models/*:generateContent"},
	{Gemini, generate, http.MethodPost, "/v1beta/models/*:streamGenerateContent"},
	{Gemini, count, http.MethodPost, "/v1beta/models/*:countTokens"},
	{Gemini, list, http.MethodGet, "/v1beta/models"},
}

// routeOf returns the route of a request. path is relative to the provider's name.
func routeOf(dialects []Dialect, method, path string) (route, bool) {
	for _, d := range dialects {
		upstream := path
		if d == OpenAIResponses || d == OpenAIChat {
			upstream = strings.TrimPrefix(path, "/v1") // some clients include it in the base URL
		}
		for _, r := range routes {
			before, after, named := strings.Cut(r.path, "*")
			model := strings.TrimSuffix(strings.TrimPrefix(upstream, before), after)
			valid := named && modelName.MatchString(model) || !named && model == ""
			if r.dialect == d && r.method == method && upstream == before+model+after && valid {
				return route{d, r.kind, model, upstream}, true
			}
		}
	}
	return route{}, false
}

// query returns the allowed parameters: the format of an answer, betas, and the pages of lists.
func query(in url.Values) string {
	out := url.Values{}
	for _, name := range []string{"alt", "beta", "limit", "after_id", "before_id", "pageSize", "pageToken"} {
		if v := in.Get(name); v != "" && (name != "alt" || v == "sse") {
			out.Set(name, v)
		}
	}
	return out.Encode()
}

// keysOf returns all keys in a request.
func keysOf(r *http.Request) []string {
	keys := []string{r.Header.Get("X-Api-Key"), r.Header.Get("X-Goog-Api-Key"), r.URL.Query().Get("key")}
	if scheme, key, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		keys = append(keys, strings.TrimSpace(key))
	}
	return slices.DeleteFunc(keys, func(k string) bool { return k == "" })
}

// refusal is an error answer of the proxy.
type refusal struct {
	status  int
	message string
	spent   bool // because of the budget
}

func (f *refusal) Error() string { return f.message }

func refuse(status int, format string, args ...any) error {
	return &refusal{status: status, message: fmt.Sprintf(format, args...)}
}

// overBudget returns a refusal because of the budget.
func overBudget(message string) error {
	return &refusal{status: http.StatusForbidden, message: message, spent: true}
}

// errorName holds the names of a status in the dialects.
type errorName struct {
	anthropic  string // type
	openai     string // type
	openaiCode any    // nil for null
	gemini     string // status
}

const invalidRequest = "invalid_request_error"

var errorNames = map[int]errorName{
	http.StatusBadRequest:            {invalidRequest, invalidRequest, nil, "INVALID_ARGUMENT"},
	http.StatusUnauthorized:          {"authentication_error", invalidRequest, "invalid_api_key", "UNAUTHENTICATED"},
	http.StatusForbidden:             {"permission_error", "request_forbidden", "permission_denied", "PERMISSION_DENIED"},
	http.StatusNotFound:              {"not_found_error", invalidRequest, "unknown_url", "NOT_FOUND"},
	http.StatusRequestEntityTooLarge: {"request_too_large", invalidRequest, "request_too_large", "INVALID_ARGUMENT"},
	http.StatusUnsupportedMediaType:  {invalidRequest, invalidRequest, "unsupported_media_type", "INVALID_ARGUMENT"},
	http.StatusTooManyRequests:       {"rate_limit_error", "requests", "rate_limit_exceeded", "RESOURCE_EXHAUSTED"},
	http.StatusBadGateway:            {"api_error", "server_error", "server_error", "UNAVAILABLE"},
}

// refuse answers with an error in the format of the dialect. For an unknown dialect, it uses OpenAI's format.
func (d Dialect) refuse(w http.ResponseWriter, f *refusal) {
	name := errorNames[f.status]
	var body any
	switch d {
	case Anthropic:
		body = map[string]any{"type": "error", "error": map[string]any{"type": name.anthropic, "message": f.message}}
	case Gemini:
		body = map[string]any{"error": map[string]any{"code": f.status, "message": f.message, "status": name.gemini}}
	default:
		body = map[string]any{"error": map[string]any{
			"message": f.message, "type": name.openai, "param": nil, "code": name.openaiCode,
		}}
	}
	w.Header().Set("Content-Type", "application/json")
	if f.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	} else if f.status < 500 {
		w.Header().Set("X-Should-Retry", "false")
	}
	w.WriteHeader(f.status)
	_ = json.NewEncoder(w).Encode(body) // the client may have disconnected
}
