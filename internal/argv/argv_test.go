package argv_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/argv"
)

// TestFill: a value is part of one argument and is not read once more.
func TestFill(t *testing.T) {
	values := map[string]string{argv.Prompt: "{model} $(x) 'y' \n-z", argv.Model: "m", argv.System: ""}
	got, err := argv.Fill([]string{"agent", "--ask={prompt}", "{prompt}{model}", "{system}", "{{prompt}}", `{"a":{}}`, "{}"}, values)
	want := []string{"agent", "--ask={model} $(x) 'y' \n-z", "{model} $(x) 'y' \n-zm", "", "{prompt}", `{"a":{}}`, "{}"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if argv.Has([]string{"x", "{{prompt}}"}, argv.Prompt) || !argv.Has([]string{"x", "a{prompt}"}, argv.Prompt) {
		t.Error("placeholders are not found")
	}
}

func TestInvalid(t *testing.T) {
	long := map[string]string{argv.Prompt: strings.Repeat("x", 1<<20), argv.System: "a\x00b"}
	for name, args := range map[string][]string{
		"nothing": {}, "no program": {""}, "the program": {"{prompt}"}, "typo": {"x", "{promt}"}, "many": make([]string, 1000),
		"long": {"x", "{prompt}"}, "NUL": {"x", "{system}"}, "NUL in the file": {"x", "a\x00"},
	} {
		if _, err := argv.Fill(args, long); !errors.Is(err, argv.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := argv.Check([]string{"x", "{promt}"}); err == nil || !strings.Contains(err.Error(), "did you mean \"prompt\"?") {
		t.Error(err)
	}
}
