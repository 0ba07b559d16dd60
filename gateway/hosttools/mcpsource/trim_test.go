package mcpsource

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestTrimmed(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 1e5) + "1" + strings.Repeat("}", 1e5)
	large := strings.Repeat(`"\\\"]}",`, 1<<18) + "1"
	list := func(tools string) string {
		return `{"jsonrpc":"2.0","id":1,"result":{"x":[[{}]],"tools":[` + tools + `],"nextCursor":"}"}}` + "\n"
	}
	for name, tc := range map[string]struct{ in, want, notes string }{
		"nothing":  {"", "", ""},
		"a list":   {list(`{"name":"a","inputSchema":{"type":"object"}},{"name":"b"}`), list(`{"name":"a","inputSchema":{"type":"object"}},{"name":"b"}`), ""},
		"deep":     {list(`{"name":"a"}, {"inputSchema":` + deep + `,"name":"b"},{"name":"c"}`), list(`{"name":"a"}, null,{"name":"c"}`), "b: it is nested more than 100 levels deep;"},
		"large":    {list(`{"name":"a","inputSchema":[` + large + `]},{"name":"b"}`), list(`null,{"name":"b"}`), "a: it is larger than 1024 KiB;"},
		"two":      {list(`{"a":`+deep+`},{"name":"b","a":`+deep+`}`) + list(`{}`), list(`null,null`) + list(`{}`), ": it is nested more than 100 levels deep;b: it is nested more than 100 levels deep;"},
		"a result": {`{"id":1,"result":{"content":[{"tools":` + deep + `}]}}`, `{"id":1,"result":{"content":[{"tools":` + deep + `}]}}`, ""},
		"no list":  {`{"tools":[[{"a":[` + large + `]}]]}`, `{"tools":[[{"a":[` + large + `]}]]}`, ""},
		"no JSON":  {`]]}}{"result":{"tools":[{"name":"a"`, `]]}}{"result":{"tools":[`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var notes strings.Builder
			r := &trimmed{r: iotest.HalfReader(strings.NewReader(tc.in)), note: func(name, why string) { notes.WriteString(name + ": " + why + ";") }}
			got, err := io.ReadAll(r)
			if string(got) != tc.want || err != nil {
				t.Errorf("read %.300q, %v, want %.300q", got, err, tc.want)
			}
			if notes.String() != tc.notes {
				t.Errorf("notes %q, want %q", notes.String(), tc.notes)
			}
		})
	}
}

// A tool that does not end is given up.
func TestTrimmedWithoutEnd(t *testing.T) {
	t.Parallel()
	endless := io.MultiReader(strings.NewReader(`{"result":{"tools":[{"a":"`), zeros{})
	if n, err := io.Copy(io.Discard, &trimmed{r: endless}); n > 64<<10 || !errors.Is(err, errTooLarge) {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func BenchmarkTrimmed(b *testing.B) {
	in := `{"result":{"tools":[{"a":"` + strings.Repeat("x", 100<<20) + `"}]}}`
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, &trimmed{r: strings.NewReader(in), note: func(string, string) {}}); err != nil {
			b.Fatal(err)
		}
	}
}
