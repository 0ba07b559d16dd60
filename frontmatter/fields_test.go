package frontmatter_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
)

func TestInputFields(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		src  string
		want []string
	}{
		{"just a template", nil},
		{"---\nmodel: a/b\n---\nx", nil},
		{"---\ninput:\n  schema:\n    task: string, what to do\n    path?: string\n    rows(array, of them): string\n---\nx", []string{"path", "rows", "task"}},
		{"---\ninput:\n  schema:\n    type: object\n    properties:\n      b: {type: string}\n      a: {type: integer}\n---\nx", []string{"a", "b"}},
		{"---\ninput:\n  default: {x: 1}\n---\nx", nil},
	} {
		doc, err := frontmatter.Parse("x.prompt", []byte(tc.src))
		if err != nil {
			t.Fatalf("%q: %v", tc.src, err)
		}
		if diff := cmp.Diff(tc.want, doc.InputFields()); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tc.src, diff)
		}
	}
}
