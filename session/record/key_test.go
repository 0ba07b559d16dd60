package record_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/record"
)

func TestKeyText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		key  record.Key
		text string
		run  string
	}{
		{record.WorkflowKey("run_1", "default"), "workflow:run_1:default", "run_1"},
		{record.AgentKey("run_2", "a.b-c_d"), "agent:run_2:a.b-c_d", "run_2"},
		{record.UserKey("lab"), "user:lab:default", ""},
	} {
		if got := test.key.String(); got != test.text {
			t.Errorf("String() = %q, want %q", got, test.text)
		}
		if got := test.key.Run(); got != test.run {
			t.Errorf("%s: Run() = %q, want %q", test.text, got, test.run)
		}
		if got, err := record.ParseKey(test.text); err != nil || got != test.key {
			t.Errorf("ParseKey(%q) = %v, %v", test.text, got, err)
		}
		text, err := json.Marshal(test.key)
		if err != nil || string(text) != `"`+test.text+`"` {
			t.Errorf("in JSON: %s, %v", text, err)
		}
		var back record.Key
		if err := json.Unmarshal(text, &back); err != nil || back != test.key {
			t.Errorf("from JSON: %v, %v", back, err)
		}
	}
}

func TestBadKeys(t *testing.T) {
	t.Parallel()
	for _, key := range []record.Key{
		{},
		{Namespace: "workflow", ID: "a"},
		{Namespace: "workflow", Name: "a"},
		{ID: "a", Name: "a"},
		record.WorkflowKey("a:b", "c"),
		record.WorkflowKey("a", "b:c"),
		record.WorkflowKey("a/b", "c"),
		record.WorkflowKey("..", "c"),
		record.WorkflowKey("a", "../c"),
		record.WorkflowKey("a", "-rf"),
		record.WorkflowKey("a\x00", "c"),
		record.WorkflowKey("a\n", "c"),
		record.WorkflowKey("a b", "c"),
		record.WorkflowKey("a", "\xff"),
		record.WorkflowKey("ü", "c"),
		record.WorkflowKey("a", strings.Repeat("x", 129)),
		record.WorkflowKey(strings.Repeat("x", 10<<10), "c"),
	} {
		err := key.Validate()
		if !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%q: Validate() = %v, want ErrInvalid", key.String(), err)
		}
		if err != nil && len(err.Error()) > 1024 {
			t.Errorf("error of %d bytes", len(err.Error()))
		}
	}
	for _, text := range []string{"", "a", "a:b", "a:b:c:d", "::", "a::c", strings.Repeat("a:", 10<<10)} {
		if key, err := record.ParseKey(text); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("ParseKey(%.20q) = %v, %v, want ErrInvalid", text, key, err)
		}
	}
}

// FuzzKey verifies that the text form is unambiguous: text and key determine each other.
func FuzzKey(f *testing.F) {
	f.Add("workflow", "run_1", "default", "workflow:run_1:default")
	f.Add("a", "b:c", "d", "a:b:c:d")
	f.Add("a", "", "..", "a::..")
	f.Fuzz(func(t *testing.T, namespace, id, name, text string) {
		key := record.Key{Namespace: namespace, ID: id, Name: name}
		back, err := record.ParseKey(key.String())
		if key.Validate() == nil && (err != nil || back != key) {
			t.Errorf("ParseKey(%q) = %+v, %v, want %+v", key.String(), back, err, key)
		}
		if err == nil && back != key {
			t.Errorf("%+v and %+v share the text %q", key, back, key.String())
		}
		if parsed, err := record.ParseKey(text); err == nil {
			if parsed.String() != text || parsed.Validate() != nil {
				t.Errorf("ParseKey(%q) = %+v, whose text is %q", text, parsed, parsed.String())
			}
		}
	})
}

func TestNewID(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		id := record.NewID()
		if len(id) != 26 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Fatalf("id %q is not 26 characters of base32", id)
		}
		if seen[id] {
			t.Fatalf("id %q came twice", id)
		}
		seen[id] = true
	}
}

// FuzzUserScope verifies that a user name yields a valid key unless it is too long. The key must return the same name,
// and no other name may have the same key.
func FuzzUserScope(f *testing.F) {
	for _, name := range []string{"alice", "alice@example.com", "a_b", "_5f", "-x", ".", "Jürgen", "a:b", "\x00", "_", "__", "a_5fb"} {
		f.Add(name, name+"_")
	}
	f.Fuzz(func(t *testing.T, name, other string) {
		key := record.UserScope(name).Key("user")
		if err := key.Validate(); err != nil {
			if name != "" && len(key.ID) <= 128 {
				t.Fatalf("%q: %v", name, err)
			}
			return
		}
		if got := key.User(); got != name {
			t.Errorf("%q became %q", name, got)
		}
		if name != other && record.UserScope(other) == record.UserScope(name) {
			t.Errorf("%q and %q have the same scope", name, other)
		}
	})
}

// TestUserKeys verifies that an end user's sandbox differs from a named sandbox with the same name.
func TestUserKeys(t *testing.T) {
	t.Parallel()
	own, named := record.UserScope("alice").Key("user"), record.UserKey("alice")
	if own == named || own.User() != "alice" || named.User() != "" || record.WorkflowKey("alice", "user").User() != "" {
		t.Errorf("%s is %q's, %s is %q's", own, own.User(), named, named.User())
	}
	if err := record.UserScope("").Key("user").Validate(); err == nil {
		t.Error("an empty user has a valid key")
	}
	if err := record.UserScope(strings.Repeat("x", 129)).Key("user").Validate(); err == nil {
		t.Error("a name that is too long was taken")
	}
}
