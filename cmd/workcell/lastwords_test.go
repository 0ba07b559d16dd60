package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLastWords(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		output any
		want   []string
	}{
		"standard error":  {map[string]any{"stderr": "a\r\nb\n\n", "stdout": "c"}, []string{"a", "b"}},
		"standard output": {map[string]any{"stderr": " \n", "stdout": "c\n"}, []string{"c"}},
		"much":            {map[string]any{"stderr": strings.Repeat("x\n", 50) + "y"}, append(strings.Split(strings.Repeat("x", 9), ""), "y")},
		"wide":            {map[string]any{"stderr": strings.Repeat("é", 300)}, []string{strings.Repeat("é", 199) + "…"}},
		"nothing":         {map[string]any{"stderr": "", "stdout": ""}, nil},
		"no command":      {"text", nil},
		"no output":       {nil, nil},
	} {
		if diff := cmp.Diff(test.want, lastWords(test.output)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
