package yamlnode_test

import (
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// TestPlaceOfSyntaxErrors verifies that malformed YAML is reported with the position and a hint.
func TestPlaceOfSyntaxErrors(t *testing.T) {
	t.Parallel()
	flow := "close each { and ["
	for text, want := range map[string]string{
		"id: x\nsteps:\n  - {id: a, command: echo ${ input.a }}\n":         "3:27: " + flow,
		"a: b\nlist:\n  - {id: é, command: echo ${ input.a }}\n":           "3:27: " + flow,
		"id: x\nsteps:\n  - {id: a, command: \"true\"\n  - {id: b}\n":      "3:6: " + flow,
		"a: 1\nb: {c: {d?: string}}\n":                                     "2:9: " + flow,
		"a: 1\nb: {c: \"}\", d: [1, 2}\n":                                  "2:17: " + flow,
		"{a: [b\n":                                                         "1:6: " + flow,
		"a: {b: c\n":                                                       "1:5: " + flow,
		"a: 1\nb:\n  c: 1\n d: 2\n":                                        "4:2: correct the indentation",
		"id: x\nsteps:\n  - id: a\n    type: exec\n   command: \"true\"\n": "5:4: correct the indentation",
		"a: 1\nb: c: d\n":                                                  "2:5: put text that contains a colon in quotes",
		"a: 1\n\tb: 2\n":                                                   "2:1: indent with spaces",
		"a: 1\nb: \"c\nd: 2\n":                                             "2:4: ",
		"a: 1\nb: @c\n":                                                    "2:4: ",
		"a: 1\n---\nb: {\n":                                                "3:4: " + flow,
	} {
		d, _ := yamlnode.Format{MaxBytes: 1 << 20, MaxDepth: 9, MaxValues: 99}.Read("f", []byte(text))
		err := d.Err()
		if err == nil || !strings.HasPrefix(err.Error(), "f:"+strings.SplitAfter(want, ": ")[0]+"malformed YAML: ") ||
			!strings.Contains(err.Error(), strings.SplitN(want, ": ", 2)[1]) {
			t.Errorf("%q\n got %v\nwant %s", text, err, want)
		}
	}
}
