package sessiontest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// FileLimit is the required MaxFileBytes of the manager for Files.
const FileLimit = 16<<20 + 1

// Files verifies files in a session of a manager with MaxFileBytes = FileLimit. The tests run in parallel.
func Files(t *testing.T, s *session.Session) {
	t.Helper()
	runCases(t, s, []sessionCase{
		{"Sizes", fileSizes},
		{"WriteIsAllOrNothing", fileAtomic},
		{"Edit", fileEdit},
		{"Metadata", fileMetadata},
		{"ListAndRemove", fileListRemove},
		{"Errors", fileErrors},
	})
}

func fileSizes(t *testing.T, s *session.Session) {
	big := noise(FileLimit)
	for _, size := range []int{0, 1, FileLimit - 1, FileLimit} {
		info := write(t, s, "sized", big[:size], sandbox.WriteFileOptions{Overwrite: true, Size: int64(size)})
		if info.Size != int64(size) {
			t.Errorf("%d bytes were written, %d reported", size, info.Size)
		}
		if got := read(t, s, "sized", sandbox.ReadFileOptions{}); !bytes.Equal(got, big[:size]) {
			t.Errorf("%d bytes came back as %d", size, len(got))
		}
	}
	more := append(big, 'x')
	for _, size := range []int64{0, FileLimit + 1} {
		_, err := s.WriteFile(t.Context(), "sized", bytes.NewReader(more), sandbox.WriteFileOptions{Overwrite: true, Size: size})
		if !errors.Is(err, backend.ErrTooLarge) || !strings.Contains(err.Error(), fmt.Sprint(FileLimit)) {
			t.Errorf("one byte too many, size %d: %v", size, err)
		}
	}
	if got := read(t, s, "sized", sandbox.ReadFileOptions{Limit: FileLimit + 1}); !bytes.Equal(got, big) {
		t.Error("a refused write changed the file")
	}
	Output(t, s, "printf x >> sized")
	for _, opts := range []sandbox.ReadFileOptions{{}, {Limit: FileLimit + 1}} {
		if _, _, err := s.ReadFileBytes(t.Context(), "sized", opts); !errors.Is(err, backend.ErrTooLarge) || !strings.Contains(err.Error(), fmt.Sprint(FileLimit)) {
			t.Errorf("reading one byte too many, %+v: %v", opts, err)
		}
	}
	if got := read(t, s, "sized", sandbox.ReadFileOptions{Offset: 2, Limit: 3}); !bytes.Equal(got, big[2:5]) {
		t.Errorf("a range: %q", got)
	}
	for _, opts := range []sandbox.ReadFileOptions{{Offset: -1}, {Limit: -1}} {
		if _, _, err := s.ReadFileBytes(t.Context(), "sized", opts); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	got, info, err := s.ReadFileBytes(t.Context(), "sized", sandbox.ReadFileOptions{Limit: FileLimit})
	if err != nil || !bytes.Equal(got, big) || info.Size != FileLimit+1 {
		t.Errorf("a read with a limit: %d bytes of %d, %v", len(got), info.Size, err)
	}
}

// fileAtomic interrupts writes in every way. It verifies that the old file stays and that no other file appears.
func fileAtomic(t *testing.T, s *session.Session) {
	write(t, s, "atomic/file", []byte("old"), sandbox.WriteFileOptions{})
	broken := errors.New("the host's disk failed")
	ctx, cancel := context.WithCancel(t.Context())
	for name, test := range map[string]struct {
		ctx  context.Context
		body io.Reader
		opts sandbox.WriteFileOptions
		want error
	}{
		"reader fails": {t.Context(), &failing{bytes.NewReader(noise(3 << 20)), broken}, sandbox.WriteFileOptions{Overwrite: true}, broken},
		"too short":    {t.Context(), strings.NewReader("abc"), sandbox.WriteFileOptions{Overwrite: true, Size: 4}, io.ErrUnexpectedEOF},
		"too long":     {t.Context(), strings.NewReader("abc"), sandbox.WriteFileOptions{Overwrite: true, Size: 2}, backend.ErrInvalid},
		"ends badly":   {t.Context(), &failing{bytes.NewReader(noise(100)), broken}, sandbox.WriteFileOptions{Overwrite: true, Size: 100}, broken},
		"cancelled":    {ctx, io.MultiReader(bytes.NewReader(noise(3<<20)), cancels(cancel), bytes.NewReader(noise(3<<20))), sandbox.WriteFileOptions{Overwrite: true}, context.Canceled},
		"exists":       {t.Context(), strings.NewReader("new"), sandbox.WriteFileOptions{}, backend.ErrExists},
	} {
		if _, err := s.WriteFile(test.ctx, "atomic/file", test.body, test.opts); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		if got := read(t, s, "atomic/file", sandbox.ReadFileOptions{}); string(got) != "old" {
			t.Errorf("%s: the file holds %d bytes now", name, len(got))
		}
	}
	Eventually(t, "no litter", func() bool {
		list, err := s.ListFiles(t.Context(), "atomic", sandbox.ListFilesOptions{})
		return err == nil && len(list.Entries) == 1
	})
	write(t, s, "atomic/file", []byte("new"), sandbox.WriteFileOptions{Overwrite: true})
	if got := read(t, s, "atomic/file", sandbox.ReadFileOptions{}); string(got) != "new" {
		t.Errorf("after an overwrite: %q", got)
	}
}

// cancels is a reader. It calls a function and returns io.EOF.
type cancels func()

func (c cancels) Read([]byte) (int, error) { c(); return 0, io.EOF }

func fileMetadata(t *testing.T, s *session.Session) {
	info := write(t, s, "meta/file", []byte("abc"), sandbox.WriteFileOptions{Mode: 0o750})
	if info.Path != "meta/file" || info.Type != sandbox.TypeFile || info.Size != 3 || info.Mode != 0o750 || info.ModTime.IsZero() {
		t.Errorf("%+v", info)
	}
	if info := write(t, s, "meta/plain", nil, sandbox.WriteFileOptions{}); info.Mode != 0o644 {
		t.Errorf("default mode %v", info.Mode)
	}
	if info, err := s.MakeDir(t.Context(), "meta/a/b", 0); err != nil || info.Type != sandbox.TypeDir || info.Mode.Perm() != 0o755 {
		t.Errorf("MakeDir: %+v, %v", info, err)
	}
	Output(t, s, "ln -s file meta/link; mkfifo meta/fifo; chmod 4755 meta/plain; chmod 1777 meta/a")
	for name, want := range map[string]struct {
		kind sandbox.FileType
		mode fs.FileMode
	}{
		"meta/link": {sandbox.TypeSymlink, 0}, "meta/fifo": {sandbox.TypeOther, 0},
		"meta/plain": {sandbox.TypeFile, fs.ModeSetuid | 0o755}, "meta/a": {sandbox.TypeDir, fs.ModeSticky | 0o777},
	} {
		info, err := s.StatFile(t.Context(), name)
		if err != nil || info.Type != want.kind || want.mode != 0 && info.Mode != want.mode {
			t.Errorf("StatFile(%s) = %+v, %v", name, info, err)
		}
	}
	write(t, s, "meta/other", nil, sandbox.WriteFileOptions{})
	if err := s.RenameFile(t.Context(), "meta/file", "meta/other", false); !errors.Is(err, backend.ErrExists) {
		t.Errorf("RenameFile onto a file: %v", err)
	}
	must(t, s.RenameFile(t.Context(), s.Info().Workdir+"/meta/file", "meta/other", true))
	if got := read(t, s, "meta/other", sandbox.ReadFileOptions{}); string(got) != "abc" {
		t.Errorf("after renaming: %q", got)
	}
}

func fileListRemove(t *testing.T, s *session.Session) {
	Output(t, s, "mkdir -p tree/d; cd tree; for i in 1 2 3 4 5; do touch f$i d/g$i; done; ln -s / escape")
	list, err := s.ListFiles(t.Context(), "tree", sandbox.ListFilesOptions{Recursive: true})
	if err != nil || len(list.Entries) != 12 || list.Total != 12 || list.Truncated {
		t.Errorf("recursive: %d entries of %d, %v", len(list.Entries), list.Total, err)
	}
	list, err = s.ListFiles(t.Context(), "tree", sandbox.ListFilesOptions{Limit: 3})
	if err != nil || len(list.Entries) != 3 || list.Total != 7 || !list.Truncated {
		t.Errorf("limited: %d entries of %d, truncated %v, %v", len(list.Entries), list.Total, list.Truncated, err)
	}
	for _, limit := range []int{-1, sandbox.MaxListEntries + 1} {
		if _, err := s.ListFiles(t.Context(), "tree", sandbox.ListFilesOptions{Limit: limit}); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "0 to 10000") {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	if _, err := s.RemoveFile(t.Context(), "tree", false); err == nil {
		t.Error("a directory was removed without recursive")
	}
	if n, err := s.RemoveFile(t.Context(), "tree", true); err != nil || n != 13 {
		t.Errorf("RemoveFile of a tree = %d, %v", n, err)
	}
}

func fileErrors(t *testing.T, s *session.Session) {
	Output(t, s, "mkdir errors; cd errors; mkfifo fifo; ln -s /etc/passwd out; mkdir dir")
	for name, want := range map[string]error{
		"errors/missing":          backend.ErrNotFound,
		"errors/fifo":             backend.ErrInvalid,
		"errors/out":              backend.ErrPermission,
		"/etc/passwd":             backend.ErrPermission,
		"a\x00b":                  backend.ErrInvalid,
		"":                        backend.ErrInvalid,
		strings.Repeat("x", 5000): backend.ErrInvalid,
	} {
		if _, _, err := s.ReadFileBytes(t.Context(), name, sandbox.ReadFileOptions{}); !errors.Is(err, want) {
			t.Errorf("ReadFile(%.40q) = %v, want %v", name, err, want)
		}
	}
	if _, err := s.WriteFile(t.Context(), "x", strings.NewReader(""), sandbox.WriteFileOptions{Mode: fs.ModeSetuid | 0o755}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a setuid file: %v", err)
	}
	if _, err := s.MakeDir(t.Context(), "x", fs.ModeDir|0o755); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a mode with type bits: %v", err)
	}
	if err := s.RenameFile(t.Context(), "errors/dir", "", false); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("an empty target: %v", err)
	}
	var typed *backend.Error
	_, err := s.StatFile(t.Context(), "errors/missing")
	if !errors.As(err, &typed) || typed.Op != "StatFile" || typed.ID != s.ID() {
		t.Errorf("%v does not name its call", err)
	}
}

// fileEdit edits a file concurrently with other writers and verifies that no change is lost.
func fileEdit(t *testing.T, s *session.Session) {
	write(t, s, "edit/shared", nil, sandbox.WriteFileOptions{Mode: 0o640})
	const writers, edits = 4, 5
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := 0; n < edits; {
				_, err := s.EditFile(t.Context(), "edit/shared", 0, func(old []byte) ([]byte, error) {
					return append(old, fmt.Sprintf("%d.%d\n", w, n)...), nil
				})
				switch {
				case err == nil:
					n++
				case !errors.Is(err, backend.ErrTimeout): // all attempts lost against other writers
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	lines := strings.Fields(string(read(t, s, "edit/shared", sandbox.ReadFileOptions{})))
	slices.Sort(lines)
	if len(lines) != writers*edits || len(slices.Compact(lines)) != writers*edits {
		t.Errorf("%d lines of %d: %v", len(lines), writers*edits, lines)
	}
	if info, err := s.StatFile(t.Context(), "edit/shared"); err != nil || info.Mode != 0o640 {
		t.Errorf("mode %v, %v", info.Mode, err)
	}
	write(t, s, "edit/busy", []byte("begin\n"), sandbox.WriteFileOptions{})
	calls := 0
	info, err := s.EditFile(t.Context(), "edit/busy", 0, func(old []byte) ([]byte, error) {
		if calls++; calls == 1 {
			Output(t, s, "echo command >>edit/busy")
		}
		return append([]byte("edit\n"), old...), nil
	})
	if got := read(t, s, "edit/busy", sandbox.ReadFileOptions{}); err != nil || calls != 2 || string(got) != "edit\nbegin\ncommand\n" || info.Size != int64(len(got)) {
		t.Errorf("written during the edit: %q after %d calls, %+v, %v", got, calls, info, err)
	}
	_, err = s.EditFile(t.Context(), "edit/busy", 0, func(old []byte) ([]byte, error) {
		Output(t, s, "echo again >>edit/busy")
		return nil, nil
	})
	if got := read(t, s, "edit/busy", sandbox.ReadFileOptions{}); !errors.Is(err, backend.ErrTimeout) || !strings.HasSuffix(string(got), "again\nagain\n") {
		t.Errorf("written to at every attempt: %v, %q", err, got)
	}
	refused := errors.New("refused")
	if _, err := s.EditFile(t.Context(), "edit/busy", 0, func([]byte) ([]byte, error) { return nil, refused }); !errors.Is(err, refused) {
		t.Errorf("an edit that is refused: %v", err)
	}
	if _, err := s.EditFile(t.Context(), "edit/none", 0, func(old []byte) ([]byte, error) { return old, nil }); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("no such file: %v", err)
	}
	for limit, text := range map[int64]string{3: "", 20_000: strings.Repeat("x", 20_001)} {
		_, err := s.EditFile(t.Context(), "edit/shared", limit, func([]byte) ([]byte, error) { return []byte(text), nil })
		if !errors.Is(err, backend.ErrTooLarge) || !strings.Contains(err.Error(), fmt.Sprint(limit)) {
			t.Errorf("a limit of %d: %v", limit, err)
		}
	}
}
