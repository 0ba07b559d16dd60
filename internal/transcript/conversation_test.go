package transcript

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// Parts of a conversation with two calls in its first turn.
const (
	ask    = `{"turn":{"number":1,"keep":0,"messages":[{"content":[{"text":"go"}],"role":"user"}],"answer":{"content":[{"toolRequest":{"name":"x","ref":"1"}},{"toolRequest":{"name":"y","ref":"2"}}],"role":"model"}}}`
	one    = `{"call":{"turn":1,"ref":"1","result":{"output":{"exec_id":"exe_1"}}}}`
	two    = `{"call":{"turn":1,"ref":"2","result":{"output":"text"}}}`
	second = `{"turn":{"number":2,"keep":3,"messages":[{"content":[{"text":"note"}],"role":"user"}],"answer":{"content":[{"toolRequest":{"name":"x","ref":"1"}}],"role":"model"},"input_tokens":5}}`
	lost   = `{"lost":"it is too large"}`
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

// TestConversation: parts in their order make a conversation, and nothing else does.
func TestConversation(t *testing.T) {
	t.Parallel()
	c := &Conversation{}
	if err := add(c, ask, one, two, second, one1(2)); err != nil {
		t.Fatal(err)
	}
	if c.Turns() != 2 || len(c.messages) != 4 || c.calls != 3 || c.input != 5 || len(c.execs) != 1 || c.execs[0] != "exe_1" || len(c.tools) != 2 {
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
	if refs := Refs(json.RawMessage(ask)); len(refs) != 2 || refs[1] != "2" || Refs(json.RawMessage(one)) != nil || Refs(json.RawMessage("x")) != nil {
		t.Errorf("refs: %v", refs)
	}
}

// one1 is the result of the first call of a turn.
func one1(turn int) string {
	return strings.Replace(one, `"turn":1`, `"turn":`+string(rune('0'+turn)), 1)
}

// FuzzConversation: whatever the parts are, a conversation takes them or refuses them, and what it takes can be continued.
func FuzzConversation(f *testing.F) {
	f.Add(ask, one, two)
	f.Add(ask, two, one)
	f.Add(second, lost, "{}")
	f.Fuzz(func(t *testing.T, a, b, d string) {
		c := &Conversation{}
		for _, p := range []string{a, b, d} {
			before := *c
			if err := c.Add(json.RawMessage(p), time.Time{}); err != nil && (c.turns != before.turns || c.bytes != before.bytes || c.calls != before.calls) {
				t.Errorf("a part that was refused changed the conversation: %q", p)
			}
			Refs(json.RawMessage(p))
		}
		if c.turns == 0 {
			return
		}
		r := New("a", "", c, nil)
		if p, err := r.Progress(); err != nil || p.Turns != c.turns {
			t.Errorf("%+v, %v", p, err)
		}
		if m, err := r.replayed(); err != nil || m == nil {
			t.Errorf("%v, %v", m, err)
		}
	})
}
