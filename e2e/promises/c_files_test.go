package promises

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// noise gives n bytes that look like nothing, the same for the same seed.
func noise(seed uint64, n int) []byte {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	data := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(data) // never fails
	return data
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// hashInside gives the hash of a file as the sandbox sees it.
func hashInside(t *testing.T, b *box, path string) string {
	t.Helper()
	sum, _, _ := strings.Cut(b.exec(t, session.ExecRequest{Argv: []string{"sha256sum", "--", path}}), " ")
	return strings.TrimPrefix(sum, `\`)
}

// TestC1Sizes moves files through the tools.
func TestC1Sizes(t *testing.T) {
	t.Parallel()
	const limit = 64 << 20
	b := w.user
	dir := b.dir(t)
	for _, n := range []int{0, 1, 256 << 10, 1 << 20} {
		data := noise(uint64(n%251), n)
		path := fmt.Sprintf("%s/f%d", dir, n)
		out := b.ok(t, toolspec.ToolFSWrite, obj{"path": path, "contents_b64": b64(data)})
		if out["size_bytes"] != float64(n) {
			t.Errorf("wrote %v bytes, want %d", out["size_bytes"], n)
		}
		if got := hashInside(t, b, path); got != hash(data) {
			t.Errorf("%d bytes arrived changed", n)
		}
		out = b.ok(t, toolspec.ToolFSRead, obj{"path": path, "max_bytes": max(n, 1)})
		if !bytes.Equal(contents(t, out), data) || out["truncated"] != false {
			t.Errorf("%d bytes came back changed", n)
		}
		b.ok(t, toolspec.ToolFSDelete, obj{"path": path})
	}
	out := b.call(t, toolspec.ToolFSRead, obj{"path": dir + "/over", "max_bytes": limit + 1})
	if fails(t, "a larger read", out, toolspec.CodeInvalid); !strings.Contains(message(out), strconv.Itoa(limit)) {
		t.Errorf("the limit is not named: %v", out["error"])
	}
	// A file that is longer than what is read at a time is read in parts, and says so: here by one byte.
	const part = 256 << 10
	b.sh(t, "head -c "+strconv.Itoa(part+1)+" /dev/zero > "+dir+"/long")
	out = b.ok(t, toolspec.ToolFSRead, obj{"path": dir + "/long"})
	if len(contents(t, out)) != part || out["truncated"] != true || out["next_offset"] != float64(part) || out["size_bytes"] != float64(part+1) {
		t.Errorf("truncated %v, next offset %v, size %v", out["truncated"], out["next_offset"], out["size_bytes"])
	}
	out = b.ok(t, toolspec.ToolFSRead, obj{"path": dir + "/long", "offset": part})
	if len(contents(t, out)) != 1 || out["truncated"] != false {
		t.Errorf("the rest: %v", out)
	}
}

// TestC1SessionLimit: the session's own limit is exact too, in both directions, and 50 MiB stream through below it.
func TestC1SessionLimit(t *testing.T) {
	t.Parallel()
	const limit = 50 << 20
	m := newManager(t, w.driver, session.Options{MaxFileBytes: limit})
	s, _, err := m.Open(t.Context(), session.UserKey("files"), request())
	must(t, err)
	data := noise(7, limit)
	info, err := s.WriteFile(t.Context(), "full", bytes.NewReader(data), session.WriteFileOptions{})
	if err != nil || info.Size != limit {
		t.Fatalf("exactly the limit: %+v, %v", info, err)
	}
	sum := sha256.New()
	if info, err = s.ReadFile(t.Context(), "full", sum, session.ReadFileOptions{}); err != nil || info.Size != limit {
		t.Fatalf("reading it: %+v, %v", info, err)
	}
	if hex.EncodeToString(sum.Sum(nil)) != hash(data) {
		t.Error("the contents came back changed")
	}
	over := io.MultiReader(bytes.NewReader(data), strings.NewReader("!"))
	_, err = s.WriteFile(t.Context(), "over", over, session.WriteFileOptions{})
	if !errors.Is(err, backend.ErrTooLarge) || !strings.Contains(err.Error(), strconv.Itoa(limit)) {
		t.Errorf("limit+1 written: %v", err)
	}
	if _, err := s.StatFile(t.Context(), "over"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("half of it is there: %v", err)
	}
	if _, err := s.Exec(t.Context(), session.ExecRequest{Command: "echo >> full; ls -A > /tmp/names; test $(cat /tmp/names) = full"}); err != nil {
		t.Error(err)
	}
	_, err = s.ReadFile(t.Context(), "full", io.Discard, session.ReadFileOptions{})
	if !errors.Is(err, backend.ErrTooLarge) || !strings.Contains(err.Error(), strconv.Itoa(limit)) {
		t.Errorf("limit+1 read: %v", err)
	}
}

// TestC2RoundTrip writes any bytes and reads the same.
func TestC2RoundTrip(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		var sums strings.Builder
		for i := range 120 {
			data := anyBytes(uint64(i))
			path := fmt.Sprintf("%s/f%d", dir, i)
			in := obj{"path": path, "contents_b64": b64(data)}
			if utf8.Valid(data) && i%2 == 0 {
				in = obj{"path": path, "contents": string(data)}
			}
			b.ok(t, toolspec.ToolFSWrite, in)
			out := b.ok(t, toolspec.ToolFSRead, obj{"path": path})
			if got := contents(t, out); !bytes.Equal(got, data) {
				t.Errorf("%d bytes, seed %d: %d bytes came back changed", len(data), i, len(got))
			}
			if _, isText := out["contents"]; isText != utf8.Valid(data) {
				t.Errorf("seed %d: valid UTF-8 is %t, returned as text %t", i, utf8.Valid(data), isText)
			}
			fmt.Fprintf(&sums, "%s  %s\n", hash(data), path)
		}
		out := b.ok(t, toolspec.ToolExec, obj{"cmd": []string{"sha256sum", "--check", "--quiet", "-"}, "stdin": sums.String()})
		if out["exit_code"] != 0.0 {
			t.Errorf("hashes inside differ: %v", out)
		}
	})
}

// anyBytes makes text, broken text, NULs, line ends of all kinds and noise, of many lengths.
func anyBytes(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	var data []byte
	for range r.IntN(40) {
		switch r.IntN(8) {
		case 0:
			data = append(data, noise(r.Uint64(), r.IntN(2000))...)
		case 1:
			data = append(data, "\r\n\n\r"...)
		case 2:
			data = append(data, "\xff\xfe\xc3\x28\xed\xa0\x80\xf0\x9f"...)
		case 3:
			data = append(data, 0, 0, 0)
		case 4:
			data = append(data, "\ufeff日本語 🚀\u2028"...)
		default:
			data = append(data, "some text, "...)
		}
	}
	if seed%2 == 0 { // text more often than chance would have it
		return bytes.ToValidUTF8(data, []byte("\ufffd"))
	}
	return data
}

func TestC6Ownership(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *box) {
		dir := b.dir(t)
		owner := map[*box]string{w.user: "1000:1000", w.root: "0:0"}[b]
		b.ok(t, toolspec.ToolFSWrite, obj{"path": dir + "/new/sub/f", "contents": "x", "mode": "0750"})
		if got, want := b.sh(t, "cd "+dir+" && stat -c '%u:%g %a' new new/sub new/sub/f"), owner+" 755\n"+owner+" 755\n"+owner+" 750\n"; got != want {
			t.Errorf("owner and mode %q, want %q", got, want)
		}
		for _, mode := range []string{"4755", "2755", "1777", "888", "-1", "rwx"} {
			fails(t, "mode "+mode, b.call(t, toolspec.ToolFSWrite, obj{"path": dir + "/m", "contents": "x", "mode": mode}), toolspec.CodeInvalid)
		}
	})
}
