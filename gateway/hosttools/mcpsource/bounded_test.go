package mcpsource

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestBounded(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 1e5) + "1" + strings.Repeat("}", 1e5)
	large := `"` + strings.Repeat(`\\\"]}`, 1<<20) + `"`
	const small = `{"jsonrpc":"2.0","id":1,"result":{"x":[[{}]],"id":"}"}}` + "\n"
	refused := func(id, why string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"error":{"code":-32098,"message":"` + why + `"}}`
	}
	for name, tc := range map[string]struct{ in, want string }{
		"nothing":           {"", ""},
		"small":             {small + small, small + small},
		"large":             {small + `{"jsonrpc":"2.0","id":7,"result":[` + large + "]}\n" + small, small + refused("7", "larger than 4 MiB") + "\n" + small},
		"its id at the end": {`{"result":` + large + `, "id": "a\"b" }`, refused(` "a\"b" `, "larger than 4 MiB")},
		"deep":              {`{"id":8,"result":` + deep + "}\n" + small, refused("8", "nested more than 1000 levels deep") + "\n" + small},
		"an event":          {"event: message\ndata: {\"id\":9,\"result\":" + deep + "}\n\n", "event: message\ndata: " + refused("9", "nested more than 1000 levels deep") + "\n\n"},
		"a request":         {`{"id":1,"method":"ping","params":` + deep + "}\n" + small, "\n" + small},
		"a notification":    {`{"method":"x","params":` + deep + "}\n" + small, "\n" + small},
		"a long id":         {`{"id":"` + strings.Repeat("1", 100) + `","result":` + deep + "}\n" + small, "\n" + small},
		"no JSON":           {`]]}}{"result":{"a`, `]]}}{"result":{"a`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := io.ReadAll(&bounded{ReadCloser: io.NopCloser(iotest.HalfReader(strings.NewReader(tc.in)))})
			if string(got) != tc.want || err != nil {
				t.Errorf("read %.300q, %v, want %.300q", got, err, tc.want)
			}
		})
	}
}

// TestLines verifies that lines of a program that are not messages do not affect the messages.
func TestLines(t *testing.T) {
	t.Parallel()
	const message = `{"jsonrpc":"2.0","id":1,"result":{"x":"\\"}}`
	const refused = `{"jsonrpc":"2.0","id":7,"error":{"code":-32098,"message":"larger than 4 MiB"}}`
	large := `{"jsonrpc":"2.0","id":7,"result":"` + strings.Repeat("]", 5<<20) + `"}`
	junk := []string{
		"Server is running {", "[INFO] started", `[1] "started`, "{", "a: 1", "}", `{"level":30,"msg":"started"}`,
		message + ` x`,
		`{"level":20,"request":{"jsonrpc":"2.0","id":1}}`, `{"jsonrpc":"2.0","id":1,"result":"`,
		strings.Repeat("[", 900), "]}",
	}
	in, want := "\n", ""
	for _, line := range junk {
		in += " " + line + "\r\n\t" + message + " \n" + large + "\n[" + message + "]\n"
		want += message + "\n" + refused + "\n[" + message + "]\n"
	}
	var stray []string
	got, err := io.ReadAll(&bounded{
		ReadCloser: io.NopCloser(strings.NewReader(in + message)),
		stray:      func(line []byte) { stray = append(stray, string(line)) },
	})
	if string(got) != want+message+"\n" || err != nil {
		t.Errorf("read %q, %v, want %q", got, err, want)
	}
	if diff := cmp.Diff(junk, stray); diff != "" {
		t.Errorf("other lines (-want +got):\n%s", diff)
	}
}

// TestBoundedWithoutEnd verifies that reading an endless message ends with an error.
func TestBoundedWithoutEnd(t *testing.T) {
	t.Parallel()
	endless := io.MultiReader(strings.NewReader(`{"result":{"tools":[{"a":"`), zeros{})
	if n, err := io.Copy(io.Discard, &bounded{ReadCloser: io.NopCloser(endless)}); n != 0 || !errors.Is(err, errTooLarge) {
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
