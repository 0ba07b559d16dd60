package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// field is a member of a JSON object. Objects keep the order of their members.
type field struct {
	name  string
	value json.RawMessage
}

type object []field

// fold returns the same text for all spellings of a name, because APIs accept different spellings.
func fold(name string) string {
	return strings.ToLower(strings.Map(func(r rune) rune {
		switch r {
		case '_', '-':
			return -1
		case '\u017f': // Go's decoder treats it as an s
			return 's'
		}
		return r
	}, name))
}

// parseObject parses a JSON object, one level deep. A duplicate name, in any spelling, is an error, because the next
// parser might use the other value.
func parseObject(raw []byte) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, errors.Join(err, errors.New("not a JSON object"))
	}
	var o object
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, err
		}
		if len(o) == maxFields {
			return nil, fmt.Errorf("an object has more than %d fields", maxFields)
		}
		name, _ := tok.(string) // an object has only string keys
		if seen[fold(name)] {
			return nil, fmt.Errorf("duplicate field: %.40q", name)
		}
		seen[fold(name)] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		o = append(o, field{name, value})
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected data after the JSON object")
	}
	return o, nil
}

// get returns the value of a name in any spelling. It returns nil for a missing name and for null.
func (o object) get(folded string) json.RawMessage {
	for _, f := range o {
		if fold(f.name) == folded && string(f.value) != "null" {
			return f.value
		}
	}
	return nil
}

// object returns a value as an object, or nil if the name is missing.
func (o object) object(folded string) (object, error) {
	raw := o.get(folded)
	if raw == nil {
		return nil, nil
	}
	return parseObject(raw)
}

// text returns a string value, and whether the value is a string.
func (o object) text(folded string) (s string, ok bool) {
	raw := o.get(folded)
	return s, raw != nil && json.Unmarshal(raw, &s) == nil
}

// set sets a value with this spelling of the name, because providers may not accept other spellings. A new member is
// added at the end.
func (o object) set(name string, value json.RawMessage) object {
	for i, f := range o {
		if fold(f.name) == fold(name) {
			o[i] = field{name, value}
			return o
		}
	}
	return append(o, field{name, value})
}

// drop returns o without the given folded names.
func (o object) drop(folded ...string) object {
	return slices.DeleteFunc(o, func(f field) bool { return slices.Contains(folded, fold(f.name)) })
}

func (o object) bytes() json.RawMessage {
	b := []byte{'{'}
	for i, f := range o {
		if i > 0 {
			b = append(b, ',')
		}
		name, _ := json.Marshal(f.name) // encoding a string never fails
		b = append(append(append(b, name...), ':'), f.value...)
	}
	return append(b, '}')
}

// Fields of requests. The first list has fields for other prices, and for requests without a metered answer, for
// example "background". These fields are always dropped.
var (
	priced = []string{
		"servicetier", "speed", "inferencegeo", "background", "deferred", "models", "fallbacks", "preset", "provider",
	}
	// make the provider run code, or use the provider's own store
	providerSide = []string{"mcpservers", "container", "prompt", "plugins", "enablecodeinterpreter"}
	// make the provider search
	searching = []string{"websearchoptions", "searchparameters", "searchoptions", "enablesearch"}
	// refer to content stored at the provider; a request could read other users' content, at an unknown cost
	stored = []string{"previousresponseid", "conversation", "cachedcontent"}
	// number of answers; the budget reserves only one
	answers = []string{"n", "bestof", "candidatecount"}
)

// lengths are the fields with the maximum length of an answer, by dialect. With a budget, only the first field is set,
// because providers of chat completions ignore the other field or reject both together.
var lengths = map[Dialect][]string{
	Anthropic: {"max_tokens"}, OpenAIResponses: {"max_output_tokens"},
	OpenAIChat: {"max_tokens", "max_completion_tokens"}, Gemini: {"maxOutputTokens"},
}

// unlimited is the limit of an answer in tokens, if there is a budget but the request has no limit. Some models reject
// larger limits.
const unlimited = 16_000

// chatFields are the allowed fields of a chat completion. Each of the many providers of this dialect has additional
// fields, and some of them search or call servers.
var chatFields = slices.Concat(answers, searching, []string{
	"maxtokens", "maxcompletiontokens",
	"model", "messages", "stream", "streamoptions", "tools", "toolchoice", "paralleltoolcalls", "functions",
	"functioncall", "temperature", "topp", "topk", "topa", "minp", "stop", "seed", "frequencypenalty", "presencepenalty",
	"repetitionpenalty", "lengthpenalty", "logitbias", "logprobs", "toplogprobs", "responseformat", "prediction",
	"verbosity", "user", "safetyidentifier", "metadata", "promptcachekey", "promptcacheretention", "reasoning",
	"reasoningeffort", "includereasoning", "thinking", "thinkingbudget", "enablethinking", "chattemplatekwargs",
})

// maxFields is the maximum number of fields in an examined object, and the maximum number of tools in a request.
const maxFields = 1000

// checked is a request after the checks.
type checked struct {
	model   string
	stream  bool
	body    []byte
	input   int64   // estimated tokens of the request
	longest int64   // maximum tokens of the answer; zero if neither the request nor a budget limits it
	cost    float64 // maximum cost of request and answer in USD
	short   bool    // the budget shortened the answer
	left    func(*checked) int64
}

// check checks a request body against a grant, and limits the answer to the remaining budget. The error is always a
// *refusal.
func check(r route, g Grant, raw []byte, left func(*checked) int64) (*checked, error) {
	if !utf8.Valid(raw) {
		return nil, refuse(http.StatusBadRequest, "the request is not UTF-8")
	}
	c := &checked{model: r.model, input: int64(len(raw)) / bytesPerToken, left: left}
	o, err := c.walk(r, g, raw)
	if inner := o.get("generatecontentrequest"); inner != nil && r.kind == count && err == nil {
		// Gemini's token count has a nested request.
		var in object
		in, err = c.walk(r, g, inner)
		o = o.set("generateContentRequest", in.set("model", json.RawMessage(`"models/`+r.model+`"`)).bytes())
	}
	switch {
	case errors.As(err, new(*refusal)):
		return nil, err
	case err != nil:
		return nil, refuse(http.StatusBadRequest, "cannot read the request: %v", err)
	}
	c.body = o.bytes()
	return c, nil
}

// walk checks the fields of a request.
func (c *checked) walk(r route, g Grant, raw []byte) (object, error) {
	o, err := parseObject(raw)
	if err != nil {
		return nil, err
	}
	if o, err = c.checkModel(r, g, o); err != nil {
		return nil, err
	}
	for _, f := range o {
		if slices.Contains(stored, fold(f.name)) && string(f.value) != "null" {
			return nil, forbid("content stored at the provider is not allowed: send all content, without %.40s", f.name)
		}
	}
	o = dropFields(r.dialect, g.Web, o)
	if o, err = c.checkAnswers(r, g, o); err != nil {
		return nil, err
	}
	if o, err = checkTools(r.dialect, g.Web, o); err != nil {
		return nil, err
	}
	for _, name := range []string{"messages", "system", "input", "contents", "systeminstruction"} {
		if raw := o.get(name); raw != nil {
			w := walker{json.NewDecoder(bytes.NewReader(raw)), g.Web}
			if err := w.check(name, ""); err != nil {
				return nil, err
			}
		}
	}
	if r.dialect == OpenAIResponses {
		if err := checkItems(o.get("input")); err != nil {
			return nil, err
		}
	}
	if r.dialect == OpenAIChat && c.stream {
		o, err = withUsage(o)
	}
	return o, err
}

// checkItems rejects request items with only the id of a stored item.
func checkItems(input json.RawMessage) error {
	var items []json.RawMessage
	_ = json.Unmarshal(input, &items) // input may also be a text
	for _, item := range items {
		o, err := parseObject(item)
		if err != nil {
			return fmt.Errorf("an item: %w", err)
		}
		if o.get("id") != nil && o.get("type") == nil && o.get("role") == nil {
			return errStored
		}
	}
	return nil
}

var errStored = forbid("content stored at the provider is not allowed: send all content")

// forbid returns a refusal with status 403.
func forbid(format string, args ...any) error { return refuse(http.StatusForbidden, format, args...) }

// dropFields removes the forbidden fields.
func dropFields(d Dialect, web bool, o object) object {
	o = o.drop(priced...).drop(providerSide...)
	if !web {
		o = o.drop(searching...)
	}
	if d == OpenAIChat {
		o = slices.DeleteFunc(o, func(f field) bool { return !slices.Contains(chatFields, fold(f.name)) })
	}
	return o
}

// leastAnswer is the minimum token limit of a shortened answer, because OpenAI accepts no smaller limit.
const leastAnswer = 16

// checkAnswers rejects requests for several answers, and limits the answer to the remaining budget.
func (c *checked) checkAnswers(r route, g Grant, o object) (object, error) {
	if r.dialect != Gemini {
		o, err := c.checkLengths(r, g, o)
		if err != nil {
			return nil, err
		}
		return c.shortenThinking(o)
	}
	config, err := o.object("generationconfig")
	if err != nil {
		return nil, err
	}
	if config, err = c.checkLengths(r, g, config); err != nil || len(config) == 0 {
		return o, err
	}
	return o.set("generationConfig", config.bytes()), nil
}

// leastThinking is the minimum thinking budget of Anthropic, in tokens.
const leastThinking = 1024

// shortenThinking limits Anthropic's thinking to half of a shortened answer, because thinking must be shorter than the
// answer.
func (c *checked) shortenThinking(o object) (object, error) {
	thinking, err := parseObject(o.get("thinking"))
	n, ok := whole(thinking.get("budgettokens"))
	if err != nil || !ok || !c.short || n < c.longest {
		return o, nil //nolint:nilerr // what is no object the provider refuses
	}
	if n = c.longest / 2; n < leastThinking {
		return nil, overBudget("the requested thinking exceeds the remaining budget of this run")
	}
	return o.set("thinking", thinking.set("budget_tokens", strconv.AppendInt(nil, n, 10)).bytes()), nil
}

// checkLengths does the checks of checkAnswers for the object with the fields.
func (c *checked) checkLengths(r route, g Grant, o object) (object, error) {
	for _, name := range answers {
		if raw := o.get(name); raw != nil && string(raw) != "1" {
			return nil, forbid("only one answer per request is allowed: remove %s", name)
		}
	}
	names := slices.Clone(lengths[r.dialect])
	if g.Provider == "openai" { // newer models reject max_tokens
		slices.Reverse(names)
	}
	for _, name := range names {
		if raw := o.get(fold(name)); raw != nil {
			n, ok := whole(raw)
			if !ok {
				return nil, fmt.Errorf("%s must be a whole number", name)
			}
			c.longest = max(c.longest, n)
		}
	}
	if r.kind != generate || g.Budget == (Budget{}) {
		return o, nil
	}
	wanted := cmp.Or(c.longest, unlimited)
	c.longest = min(wanted, max(c.left(c), leastAnswer))
	c.short = c.longest < wanted
	for _, name := range names[1:] {
		o = o.drop(fold(name))
	}
	return o.set(names[0], strconv.AppendInt(nil, c.longest, 10)), nil
}

// whole parses a whole number. Gemini accepts strings too.
func whole(raw json.RawMessage) (int64, bool) {
	text := string(raw)
	_ = json.Unmarshal(raw, &text) // raw may be a number
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) {
		return 0, false
	}
	return int64(min(max(f, 0), maxTokens)), true
}

// checkModel reads the model and whether the request is for a stream.
func (c *checked) checkModel(r route, g Grant, o object) (object, error) {
	if raw := o.get("stream"); raw != nil && json.Unmarshal(raw, &c.stream) != nil {
		return nil, errors.New("stream is not a boolean")
	}
	if r.dialect == Gemini { // the model is in the path
		o = o.drop("model")
	} else {
		var ok bool
		if c.model, ok = o.text("model"); !ok {
			return nil, errors.New("no model specified")
		}
	}
	if !slices.Contains(g.Models, c.model) {
		return nil, forbid("model %.80q is not allowed; allowed models: %s", c.model, strings.Join(g.Models, ", "))
	}
	return o, nil
}

// withUsage makes a chat completions stream end with the usage.
func withUsage(o object) (object, error) {
	options, err := o.object("streamoptions")
	if err != nil {
		return nil, err
	}
	return o.set("stream_options", options.set("include_usage", json.RawMessage("true")).bytes()), nil
}

// checkTools removes provider tools. If web is set, it keeps tools for search and fetch.
func checkTools(d Dialect, web bool, o object) (object, error) {
	raw := o.get("tools")
	if raw == nil {
		return o, nil
	}
	kept, gone, err := clientTools(d, web, true, raw)
	if err != nil || len(gone) == 0 {
		return o, err
	}
	if len(kept) == 0 {
		return o.drop("tools", "toolchoice", "toolconfig"), nil
	}
	list, _ := json.Marshal(kept) // valid JSON, so the error is always nil
	o = o.set("tools", list)
	if choice, err := parseObject(o.get("toolchoice")); err == nil {
		kind, _ := choice.text("type")
		name, _ := choice.text("name")
		if slices.ContainsFunc(gone, func(t providerTool) bool { return t.kind == kind || t.name != "" && t.name == name }) {
			o = o.drop("toolchoice")
		}
	}
	return o, nil
}

// providerTool is a tool run by the provider.
type providerTool struct{ kind, name string }

// clientTools splits tools into client tools and provider tools. It rejects nested namespaces, to avoid parsing each
// level again.
func clientTools(d Dialect, web, namespaces bool, raw json.RawMessage) (
	kept []json.RawMessage, gone []providerTool, err error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, nil, errors.New("tools is not a list")
	}
	if len(list) > maxFields {
		return nil, nil, fmt.Errorf("%d tools, the limit is %d", len(list), maxFields)
	}
	for _, item := range list {
		t, err := parseObject(item)
		if err != nil {
			return nil, nil, fmt.Errorf("a tool: %w", err)
		}
		keep, out, err := clientTool(d, web, namespaces, t)
		if err != nil {
			return nil, nil, err
		}
		if keep != nil {
			kept = append(kept, keep.bytes())
		}
		gone = append(gone, out...)
	}
	return kept, gone, nil
}

// clientTool returns the part of a tool for the client, or nil if there is no such part.
func clientTool(d Dialect, web, namespaces bool, t object) (keep object, gone []providerTool, err error) {
	if d == Gemini {
		allowed := []string{"functiondeclarations"}
		if web {
			allowed = append(allowed, "googlesearch", "googlesearchretrieval", "urlcontext")
		}
		for _, f := range t {
			if slices.Contains(allowed, fold(f.name)) {
				keep = append(keep, f)
			} else {
				gone = append(gone, providerTool{kind: f.name})
			}
		}
		return keep, gone, nil
	}
	kind, _ := t.text("type")
	name, _ := t.text("name")
	if d == OpenAIResponses && kind == "namespace" && namespaces {
		inner, out, err := clientTools(d, web, false, t.get("tools"))
		if err != nil || len(inner) == 0 {
			return nil, out, err
		}
		list, _ := json.Marshal(inner) // valid JSON, so the error is always nil
		return t.set("tools", list), out, nil
	}
	if !runsInside(d, kind) && !(web && searches(kind) && t.get("model") == nil) {
		return nil, []providerTool{{kind, name}}, nil
	}
	return t, nil, nil
}

// runsInside reports whether the client runs tools of a type. It returns false for unknown types.
func runsInside(d Dialect, kind string) bool {
	switch d {
	case Anthropic:
		prefixes := []string{"bash_", "text_editor_", "memory_", "tool_search_tool_"}
		return kind == "" || kind == "custom" ||
			slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(kind, prefix) })
	case OpenAIResponses:
		return slices.Contains([]string{"function", "custom", "local_shell", "apply_patch", "tool_search"}, kind)
	default:
		return kind == "function" || kind == "custom"
	}
}

// searches reports whether tools of a type make the provider search or fetch.
func searches(kind string) bool {
	return kind == "web_search" || strings.HasPrefix(kind, "web_search_") || strings.HasPrefix(kind, "web_fetch_")
}

// opaque are fields whose contents matter only to the program and not to the provider: arguments and results of calls,
// and schemas.
var opaque = []string{"args", "arguments", "response", "parameters", "inputschema"}

// walker parses the content of a request.
type walker struct {
	*json.Decoder
	web bool
}

// check rejects content stored at the provider. It also rejects URLs for the provider, unless this is allowed. It reads
// the next value. name is the folded key of the value, and above is the folded key of the enclosing object.
func (w walker) check(name, above string) error {
	tok, err := w.Token()
	if err != nil {
		return err
	}
	switch tok := tok.(type) {
	case json.Delim:
		for w.More() {
			inner, outer := name, above
			if tok == '{' {
				key, err := w.Token()
				if err != nil {
					return err
				}
				s, _ := key.(string) // an object has only string keys
				inner, outer = fold(s), name
			}
			if slices.Contains(opaque, inner) || inner == "input" && above != "" {
				var skipped json.RawMessage
				err = w.Decode(&skipped)
			} else {
				err = w.check(inner, outer)
			}
			if err != nil {
				return err
			}
		}
		_, err = w.Token() // closing bracket
		return err
	case string:
		return w.checkText(name, above, tok)
	}
	return nil
}

func (w walker) checkText(name, above, value string) error {
	switch {
	case !w.web && fetched(name, above, value):
		return forbid("content from a URL is not allowed: send the bytes")
	case name == "fileid" && value != "", name == "type" && value == "item_reference",
		name == "fileuri" && fetched(name, above, value) && atProvider(value):
		return errStored
	case name == "type" && above == "tools" && !runsInside(OpenAIResponses, value) && !(w.web && searches(value)):
		return forbid("tool type %.40q is not allowed", value)
	}
	return nil
}

// atProvider reports whether a URI refers to a store of Gemini's provider: to a file by name or URL, or to a bucket.
func atProvider(uri string) bool {
	u, err := url.Parse(strings.TrimSpace(uri))
	return err != nil || u.Scheme != "https" && u.Scheme != "http" ||
		strings.HasSuffix(strings.TrimRight(strings.ToLower(u.Hostname()), "."), "googleapis.com")
}

// fetched reports whether a string makes the provider fetch something.
func fetched(name, above, value string) bool {
	remote := value != "" && !strings.HasPrefix(strings.ToLower(strings.TrimSpace(value)), "data:")
	holders := []string{
		"source", "imageurl", "fileurl", "filedata", "videourl", "audiourl", "inputaudio", "file", "document", "image",
		"video",
	}
	switch name {
	case "imageurl", "fileurl", "fileuri", "videourl", "audiourl", "documenturl":
		return remote
	case "url", "uri", "gcsuri":
		return remote && slices.Contains(holders, above)
	case "data", "image", "video", "audio", "inputaudio":
		scheme, _, ok := strings.Cut(strings.ToLower(strings.TrimSpace(value)), "://")
		return ok && slices.Contains([]string{"http", "https", "gs", "s3", "oss"}, scheme)
	case "type":
		return above == "source" && value == "url"
	}
	return false
}
