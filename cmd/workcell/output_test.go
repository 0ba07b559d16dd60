package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type sample struct {
	Name  string            `json:"name"`
	Count int               `json:"count"`
	Tags  []string          `json:"tags"`
	Map   map[string]string `json:"map"`
	None  *int              `json:"none"`
	Skip  string            `json:"skip,omitempty"`
}

func TestOutputFormats(t *testing.T) {
	t.Parallel()
	v := []sample{{
		Name: "true", Count: 3, Tags: []string{"a: b", "multi\nline", "<&>", "\u2028"},
		Map: map[string]string{"k": "007"},
	}}
	for format, want := range map[string]string{
		"yaml": "- name: \"true\"\n  count: 3\n  tags:\n    - 'a: b'\n    - |-\n      multi\n      line\n    - <&>\n    - \"\\L\"\n" +
			"  map:\n    k: \"007\"\n  none: null\n",
		"json": "[\n  {\n    \"name\": \"true\",\n    \"count\": 3,\n    \"tags\": [\n      \"a: b\",\n      \"multi\\nline\",\n      \"<&>\",\n" +
			"      \"\\u2028\"\n    ],\n    \"map\": {\n      \"k\": \"007\"\n    },\n    \"none\": null\n  }\n]\n",
	} {
		var b strings.Builder
		a := newApp(nil, &b, nil)
		if err := oneOf(&a.out, outputTable, outputJSON, outputYAML).Set(format); err != nil {
			t.Fatal(err)
		}
		if err := a.print(v, nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", format, diff)
		}
	}
	a := newApp(nil, nil, nil)
	if err := oneOf(&a.out, outputTable, outputJSON, outputYAML).Set("xml"); err == nil || a.out != outputTable {
		t.Errorf("Set(xml) = %v, value %q", err, a.out)
	}
}

func TestTableIsSafeForATerminal(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	err := writeTable(&b, []string{"NAME", "VALUE"}, [][]string{{"a\nb", "\x1b[2Jx"}, {"", "y"}})
	if err != nil {
		t.Fatal(err)
	}
	want := "NAME  VALUE\na\\nb  \\x1b[2Jx\n-     y\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	if got := clip("héllo", 5); got != "héllo" {
		t.Errorf("clip = %q", got)
	}
	if got := clip("héllo!", 5); got != "héll…" {
		t.Errorf("clip = %q", got)
	}
}
