package rules_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/rules"
)

// TestFillArgs: a value becomes part of one argument, and placeholders in the value are not replaced.
func TestFillArgs(t *testing.T) {
	values := map[string]string{rules.ArgPrompt: "{model} $(x) 'y' \n-z", rules.ArgModel: "m", rules.ArgSystem: ""}
	got, err := rules.FillArgs([]string{"agent", "--ask={prompt}", "{prompt}{model}", "{system}", "{{prompt}}", `{"a":{}}`, "{}"}, values)
	want := []string{"agent", "--ask={model} $(x) 'y' \n-z", "{model} $(x) 'y' \n-zm", "", "{prompt}", `{"a":{}}`, "{}"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	if rules.HasArg([]string{"x", "{{prompt}}"}, rules.ArgPrompt) || !rules.HasArg([]string{"x", "a{prompt}"}, rules.ArgPrompt) {
		t.Error("placeholders are not found")
	}
}

func TestInvalidArgs(t *testing.T) {
	long := map[string]string{rules.ArgPrompt: strings.Repeat("x", 1<<20), rules.ArgSystem: "a\x00b"}
	for name, args := range map[string][]string{
		"nothing": {}, "no program": {""}, "the program": {"{prompt}"}, "typo": {"x", "{promt}"}, "many": make([]string, 1000),
		"long": {"x", "{prompt}"}, "NUL": {"x", "{system}"}, "NUL in the file": {"x", "a\x00"},
	} {
		if _, err := rules.FillArgs(args, long); err == nil || !strings.Contains(err.Error(), "invalid command line") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := rules.CheckArgs([]string{"x", "{promt}"}); err == nil || !strings.Contains(err.Error(), "did you mean \"prompt\"?") {
		t.Error(err)
	}
}
