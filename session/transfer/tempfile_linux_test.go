package transfer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTempFileHasNoName: a copy that is killed leaves nothing, because what is not whole has no name.
func TestTempFileHasNoName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	target := &hostTarget{arg: dir, dir: true, root: root}
	f, err := openTemp(root, ".")
	if err != nil {
		t.Fatalf("the file system of %s has no files without a name: %v", dir, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second replaces the first
		var during map[string]string
		looking := readerFunc(func(p []byte) (int, error) {
			during = below(t, dir)
			return 0, os.ErrDeadlineExceeded
		})
		if err := target.write(t.Context(), "f", entry{mode: 0o640}, looking); err == nil {
			t.Error("a copy that failed was taken")
		}
		if diff := cmp.Diff(below(t, dir), during); diff != "" {
			t.Errorf("while it was copied there was: %s", diff)
		}
		if err := target.write(t.Context(), "f", entry{mode: 0o640}, strings.NewReader("whole")); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]string{"f": "whole"}, below(t, dir)); diff != "" {
			t.Errorf("afterwards there is: %s", diff)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "f")); err != nil || st.Mode() != 0o640 {
		t.Errorf("%v, %v", st, err)
	}
	if err := target.close(); err != nil {
		t.Error(err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
