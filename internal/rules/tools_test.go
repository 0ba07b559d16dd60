package rules_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/rules"
)

func TestToolPattern(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pattern, server, tool string
		want                  bool
	}{
		{"orders.lookup", "orders", "lookup", true},
		{"orders.lookup", "orders", "lookups", false},
		{"orders.*", "orders", "look.up", true},
		{"*.delete_*", "github", "delete_repo", true},
		{"*.delete_*", "github", "undelete_repo", false},
		{"git*.get_*_by*", "github", "get_issue_by_id", true},
		{"git*.get_*_by*", "github", "get_by", false},
		{"a.*x*x", "a", "x", false},
		{"a.*", "b", "a", false},
	} {
		if got := rules.ToolPattern(tc.pattern).Match(tc.server, tc.tool); got != tc.want {
			t.Errorf("%s matches %s.%s: %t", tc.pattern, tc.server, tc.tool, got)
		}
	}
}

// FuzzToolPattern: a * matches any text, by comparison with a regular expression.
func FuzzToolPattern(f *testing.F) {
	f.Add("get_*_by*", "get_issue_by_id")
	f.Add("*a*aa", "aaa")
	f.Fuzz(func(t *testing.T, pattern, tool string) {
		if !utf8.ValidString(pattern) || !utf8.ValidString(tool) || strings.Contains(pattern, ".") {
			return // not valid for a regular expression, or not only the tool part
		}
		like := regexp.MustCompile(`(?s)^` + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$")
		if got := rules.ToolPattern("s."+pattern).Match("s", tool); got != like.MatchString(tool) {
			t.Errorf("%q matches %q: %t", pattern, tool, got)
		}
	})
}

func TestToolLimits(t *testing.T) {
	t.Parallel()
	most := rules.ToolLimits{Calls: 10, Seconds: 600}
	got := rules.ToolLimits{Calls: 500}.WithDefaults().Under(most)
	want := rules.ToolLimits{Calls: 10, Concurrent: 16, PerSecond: 50, Seconds: 60, ArgKB: 1024, ResultKB: 64}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
