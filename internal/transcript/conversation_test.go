package transcript

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// Parts of a conversation with two calls in the first turn.
const (
	ask    = `{"turn":{"number":1,"keep":0,"messages":[{"content":[{"text":"go"}],"role":"user"}],"answer":{"content":[{"toolRequest":{"name":"x","ref":"1"}},{"toolRequest":{"name":"y","ref":"2"}}],"role":"model"}}}`
	one    = `{"call":{"turn":1,"ref":"1","result":{"output":{"exec_id":"exe_1"}}}}`
	two    = `{"call":{"turn":1,"ref":"2","result":{"output":"text"}}}`
	second = `{"turn":{"number":2,"keep":3,"messages":[{"content":[{"text":"note"}],"role":"user"}],"answer":{"content":[{"toolRequest":{"name":"x","ref":"1"}}],"role":"model"},"input_tokens":5}}`
	lost   = `{"lost":"it is too large"}`

	restart = `{"restart":"it is another"}`
)

// add adds parts and returns the first error.
func add(c *Conversation, parts ...string) error {
	for _, p := range parts {
		if err := c.Add(json.RawMessage(p), time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// TestConversation verifies that only parts in the right order form a conversation.
func TestConversation(t *testing.T) {
	t.Parallel()
	c := &Conversation{}
	checktest.Must(t, add(c, ask, one, two, second, one1(2)))
	if c.Turns() != 2 || len(c.messages) != 4 || c.calls != 3 || c.input != 5 || len(c.execs) != 1 || c.execs[0] != "exe_1" {
		t.Errorf("%+v", c)
	}
	if next, err := c.next(); err != nil || len(next) != 6 {
		t.Errorf("%s, %v", next, err)
	}
	for name, parts := range map[string][]string{
		"a call first":            {one},
		"the second turn first":   {second},
		"a turn twice":            {ask, one, two, ask},
		"a result is missing":     {ask, one, second},
		"a result twice":          {ask, one, one},
		"a result of another":     {ask, strings.Replace(one, `"ref":"1"`, `"ref":"3"`, 1)},
		"a result of no turn":     {ask, one1(2)},
		"no result":               {ask, `{"call":{"turn":1,"ref":"1","result":null}}`},
		"keeps too much":          {ask, one, two, strings.Replace(second, `"keep":3`, `"keep":4`, 1)},
		"keeps less than nothing": {strings.Replace(ask, `"keep":0`, `"keep":-1`, 1)},
		"no calls":                {strings.ReplaceAll(ask, "toolRequest", "custom")},
		"a call without a ref":    {strings.Replace(ask, `"ref":"1"`, `"ref":""`, 1)},
		"two calls with one ref":  {strings.Replace(ask, `"ref":"2"`, `"ref":"1"`, 1)},
		"not of the model":        {strings.Replace(ask, `"role":"model"`, `"role":"user"`, 1)},
		"no role":                 {strings.Replace(ask, `"role":"user"`, `"role":""`, 1)},
		"no answer":               {`{"turn":{"number":1,"keep":0}}`},
		"an empty part":           {`{}`},
		"two parts":               {one[:len(one)-1] + "," + lost[1:]},
		"an unknown key":          {`{"lost":"x","more":1}`},
		"something behind":        {lost + "1"},
		"no JSON":                 {"{"},
		"null":                    {"null"},
		"behind the end":          {lost, ask},
		"negative tokens":         {strings.Replace(ask, `"keep":0`, `"keep":0,"input_tokens":-1`, 1)},
		"too large":               {strings.Replace(ask, "go", strings.Repeat("x", MaxBytes), 1)},
	} {
		c := &Conversation{}
		if err := add(c, parts...); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c = &Conversation{}
	if err := add(c, ask, lost); err != nil || c.Lost() == "" {
		t.Errorf("%v, lost: %q", err, c.Lost())
	}
	c = &Conversation{}
	if err := add(c, ask, one, restart, ask, one, two); err != nil || c.Turns() != 1 || c.calls != 2 || c.Bytes() != 2*len(ask)+2*len(one)+len(two)+len(restart) {
		t.Errorf("after a restart: %+v, %v", c, err)
	}
	for part, want := range map[string]string{lost: "it is too large false", restart: "it is another true", ask: " false", "x": " false"} {
		if why, restarts := Ends(json.RawMessage(part)); fmt.Sprint(why, " ", restarts) != want {
			t.Errorf("%.20s ends it: %q, %t", part, why, restarts)
		}
	}
	if refs := Refs(json.RawMessage(ask)); len(refs) != 2 || refs[1] != "2" || Refs(json.RawMessage(one)) != nil || Refs(json.RawMessage("x")) != nil {
		t.Errorf("refs: %v", refs)
	}
}

// TestReader verifies that people can read a conversation even if parts are missing or damaged.
func TestReader(t *testing.T) {
	t.Parallel()
	read := func(parts ...string) (text string) {
		var r Reader
		for _, raw := range parts {
			for _, p := range r.Read(json.RawMessage(raw)) {
				line, err := json.Marshal(p)
				checktest.Must(t, err)
				text += string(line) + "\n"
			}
		}
		return text
	}
	asked := `{"turn":1,"role":"user","text":"go"}
{"turn":1,"role":"model","tool":"x","ref":"1"}
{"turn":1,"role":"model","tool":"y","ref":"2"}
`
	answered := `{"turn":1,"role":"tool","tool":"x","ref":"1","output":{"exec_id":"exe_1"}}
`
	further := `{"turn":2,"role":"user","text":"note"}
{"turn":2,"role":"model","tool":"x","ref":"1"}
`
	seen := strings.Replace(second, `"messages":[`, `"messages":[{"content":[{"text":"again"}],"role":"model"},`, 1)
	media := `{"turn":{"number":1,"answer":{"role":"model","content":[{"media":{"url":"data:image/png;base64,AA=="}},` +
		`{"reasoning":"why"},{"toolRequest":{"name":"x","ref":"1","input":{"a":1}}}]}}}`
	note := func(text string) string {
		return `"role":"note","text":"` + text + `"}` + "\n"
	}
	for want, parts := range map[string][]string{
		asked + answered + `{"turn":1,"role":"tool","tool":"y","ref":"2","output":"text"}
` + further: {ask, one, two, second},
		"{" + note("the earlier messages are no longer available") + further: {second},
		asked + further: {ask, seen},
		asked + `{"turn":1,` + note("the following messages were not recorded: it is too large"): {ask, lost},
		asked + `{"turn":1,` + note("the agent starts again: it is another") + asked:             {ask, restart, ask},
		"{" + note("a part of the conversation cannot be read: unexpected EOF") + asked:          {"{", ask},
		`{"turn":1,"role":"tool","ref":"1","output":{"exec_id":"exe_1"}}
`: {one},
		`{"turn":1,"role":"model","media":"image/png"}
{"turn":1,"role":"model","text":"why","reasoning":true}
{"turn":1,"role":"model","tool":"x","ref":"1","input":{"a":1}}
`: {media},
	} {
		if got := read(parts...); got != want {
			t.Errorf("%q:\n%s\nwant\n%s", parts, got, want)
		}
	}
}

// TestSandboxesInUse verifies that a sandbox is in use until it is closed by the id or its session key.
func TestSandboxesInUse(t *testing.T) {
	t.Parallel()
	use := func(turn int, tool, input, output string) []string {
		return []string{
			fmt.Sprintf(`{"turn":{"number":%d,"answer":{"content":[{"toolRequest":{"name":%q,"ref":"1","input":%s}}],"role":"model"}}}`, turn, tool, input),
			fmt.Sprintf(`{"call":{"turn":%d,"ref":"1","result":{"output":%s}}}`, turn, output),
		}
	}
	parts := slices.Concat(
		use(1, "sandbox_exec", `{}`, `{}`),
		use(2, "sandbox_open", `{"session_key":"other"}`, `{"sandbox_id":"b"}`),
		use(3, "sandbox_open", `{}`, `{"sandbox_id":"a"}`),
		use(4, "sandbox_close", `{"sandbox_id":"a"}`, `{"ok":true}`),
		use(5, "sandbox_close", `{}`, `{"ok":true}`))
	for turns, want := range map[int]string{1: "[]", 2: "[ other]", 3: "[ other]", 4: "[other]", 5: "[]"} {
		c := &Conversation{}
		checktest.Must(t, add(c, parts[:2*turns]...))
		p, err := New("a", "", c, nil).Progress()
		if got := fmt.Sprint(p.Sandboxes); err != nil || got != want {
			t.Errorf("behind turn %d: %q, %v, want %q", turns, got, err, want)
		}
	}
}

// one1 returns the result of the first call in a turn.
func one1(turn int) string {
	return strings.Replace(one, `"turn":1`, `"turn":`+string(rune('0'+turn)), 1)
}

// FuzzConversation verifies that a conversation accepts or refuses arbitrary parts, and that it can be continued after
// the accepted parts.
func FuzzConversation(f *testing.F) {
	f.Add(ask, one, two)
	f.Add(ask, two, one)
	f.Add(second, lost, "{}")
	f.Add(ask, restart, ask)
	f.Fuzz(func(t *testing.T, a, b, d string) {
		c := &Conversation{}
		for _, p := range []string{a, b, d} {
			before := *c
			if err := c.Add(json.RawMessage(p), time.Time{}); err != nil && (c.turns != before.turns || c.bytes != before.bytes || c.calls != before.calls) {
				t.Errorf("a part that was refused changed the conversation: %q", p)
			}
			Refs(json.RawMessage(p))
			new(Reader).Read(json.RawMessage(p))
		}
		if c.turns == 0 {
			return
		}
		r := New("a", "", c, nil)
		if p, err := r.Progress(); err != nil || p.Turns != c.turns {
			t.Errorf("%+v, %v", p, err)
		}
		var offered []*ai.ToolDefinition
		for _, req := range c.requests {
			offered = append(offered, &ai.ToolDefinition{Name: req.Name})
		}
		if m, err := r.replayed(offered); err != nil || m == nil {
			t.Errorf("%v, %v", m, err)
		}
	})
}

// TestReplayedCalls verifies that a recorded answer is not replayed if it calls a tool the agent is not offered.
func TestReplayedCalls(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]error{"x y": nil, "x": ErrInvalid, "": ErrInvalid} {
		c := &Conversation{}
		checktest.Must(t, add(c, ask))
		var offered []*ai.ToolDefinition
		for _, name := range strings.Fields(names) {
			offered = append(offered, &ai.ToolDefinition{Name: name})
		}
		p := &ai.ModelParams{Request: &ai.ModelRequest{Tools: offered}}
		if _, err := New("a", "", c, nil).Hooks().WrapModel(t.Context(), p, nil); !errors.Is(err, want) {
			t.Errorf("%q are offered: %v", names, err)
		}
	}
}
