//go:build linux

package promises

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// noise returns n pseudorandom bytes for a seed.
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

// TestC1SessionLimit verifies that the session's size limit is exact in both directions, and that 50 MiB below the
// limit are streamed.
func TestC1SessionLimit(t *testing.T) {
	t.Parallel()
	const limit = 50 << 20
	m := newManager(t, w.driver, session.Options{MaxFileBytes: limit})
	s, _, err := m.Open(t.Context(), session.UserKey("files"), request())
	must(t, err)
	data := noise(7, limit)
	info, err := s.WriteFile(t.Context(), "full", bytes.NewReader(data), sandbox.WriteFileOptions{})
	if err != nil || info.Size != limit {
		t.Fatalf("exactly the limit: %+v, %v", info, err)
	}
	sum := sha256.New()
	info, err = s.ReadFile(t.Context(), "full", sum, sandbox.ReadFileOptions{})
	if err != nil || info.Size != limit || hex.EncodeToString(sum.Sum(nil)) != hash(data) {
		t.Errorf("reading it: %+v, %v, or other contents", info, err)
	}
	over := io.MultiReader(bytes.NewReader(data), strings.NewReader("!"))
	_, err = s.WriteFile(t.Context(), "over", over, sandbox.WriteFileOptions{})
	if !errors.Is(err, backend.ErrTooLarge) || !strings.Contains(err.Error(), strconv.Itoa(limit)) {
		t.Errorf("limit+1 written: %v", err)
	}
	check(t, s, "ls -A -I .workcell; echo >> full", "full\n") // and not half of the other
	_, err = s.ReadFile(t.Context(), "full", io.Discard, sandbox.ReadFileOptions{})
	if !errors.Is(err, backend.ErrTooLarge) || !strings.Contains(err.Error(), strconv.Itoa(limit)) {
		t.Errorf("limit+1 read: %v", err)
	}
}

// TestC3Whole interrupts writes at any position. Afterwards, the file has the old or the new contents, no temporary
// file exists, and no space remains in use.
func TestC3Whole(t *testing.T) {
	t.Parallel()
	eachLimited(t, frontmatter.Limits{WorkspaceMB: workspaceMB}, func(t *testing.T, b *testSandbox) {
		const size = 256 << 10
		r := rand.New(rand.NewPCG(3, 3))
		var versions [][]byte
		for i := range 19 {
			data := noise(uint64(i), size)
			versions = append(versions, data)
			ctx, cancel := context.WithCancel(t.Context())
			at, hook := r.IntN(size), cancel
			if i%3 == 0 { // cancel around the time of the final rename; the first write is complete
				at, hook = size, func() { go cancel() }
			}
			if i == 0 {
				hook = func() {}
			}
			body := io.MultiReader(bytes.NewReader(data[:at]), hookReader(hook), bytes.NewReader(data[at:]))
			if _, err := b.s.WriteFile(ctx, "f", body, sandbox.WriteFileOptions{Overwrite: true, Size: size}); err != nil && !errors.Is(err, context.Canceled) {
				t.Fatalf("write %d: %v, want context.Canceled", i, err)
			}
			cancel()
			got, _, err := b.s.ReadFileBytes(t.Context(), "f", sandbox.ReadFileOptions{})
			if must(t, err); !slices.ContainsFunc(versions, func(v []byte) bool { return bytes.Equal(v, got) }) {
				t.Fatalf("after write %d: %d bytes that match no version", i, len(got))
			}
		}
		eventually(t, "only the file remains", func() bool { return b.sh(t, "ls -A -I .workcell") == "f\n" })
		eventually(t, "there is room again", func() bool {
			_, err := b.s.WriteFile(t.Context(), "g", bytes.NewReader(make([]byte, 3<<20)), sandbox.WriteFileOptions{Overwrite: true})
			if err != nil && !errors.Is(err, backend.ErrQuota) {
				t.Fatal(err)
			}
			return err == nil
		})
	})
}

// hookReader calls a function and returns EOF.
type hookReader func()

func (f hookReader) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}
