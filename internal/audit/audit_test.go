package audit

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// records reads every line of the files that match.
func records(t *testing.T, pattern string) (list []Record) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var r Record
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Errorf("%s: %v in %s", path, err, lines.Text())
			}
			list = append(list, r)
		}
	}
	return list
}

func TestRecordHasWhatItsContextKnows(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit")
	l, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	note := func(ctx context.Context) {
		t.Helper()
		if err := Note(ctx, func(r *Record) { r.Event, r.Argv = EventCommand, []string{"a", "b"} }); err != nil {
			t.Error(err)
		}
	}
	note(t.Context()) // nothing is recorded without a log
	ctx := With(NewContext(t.Context(), l), func(r *Record) { r.Run, r.Step = "run_1", "s" })
	note(With(ctx, func(r *Record) { r.Tool = "t" }))
	note(ctx)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got := records(t, path)
	if len(got) != 2 || got[0].Run != "run_1" || got[0].Step != "s" || got[0].Tool != "t" || got[1].Tool != "" || len(got[0].Argv) != 2 || got[0].Time.IsZero() {
		t.Errorf("%+v", got)
	}
	if st, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

func TestHash(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit")
	l, err := Open(path, Options{Hash: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{{"a", "b"}, {"ab"}, {"a\x00b"}, nil} {
		if err := l.Write(Record{Event: EventCommand, Argv: argv}); err != nil {
			t.Error(err)
		}
	}
	got := records(t, path)
	if len(got) != 4 || got[0].Argv != nil || len(got[0].ArgvSHA256) != 64 || got[0].ArgvSHA256 == got[1].ArgvSHA256 || got[3].ArgvSHA256 != "" {
		t.Errorf("%+v", got)
	}
}

// TestRotation: with several logs on one file, as of several processes, no record is lost or torn when it is renamed.
func TestRotation(t *testing.T) {
	t.Parallel()
	const writers, each = 4, 200
	path := filepath.Join(t.TempDir(), "audit")
	var wg sync.WaitGroup
	for w := range writers {
		l, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		l.max = 4096
		wg.Go(func() {
			for i := range each {
				if err := l.Write(Record{Event: EventExit, Exec: strconv.Itoa(w*each + i)}); err != nil {
					t.Error(err)
				}
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for _, r := range records(t, path+"*") {
		seen[r.Exec]++
	}
	if files, _ := filepath.Glob(path + "*"); len(files) < 3 || len(seen) != writers*each {
		t.Errorf("%d records in %d files, want %d", len(seen), len(files), writers*each)
	}
}

// TestTornLine: a record that follows one that was not written to its end has a line of its own.
func TestTornLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit")
	whole := `{"event":"exit"}`
	if err := os.WriteFile(path, []byte(whole+"\n"+whole[:9]), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing torn
		l, err := Open(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.Write(Record{Event: EventTool}), l.Close()); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(path)
	lines := strings.Split(string(raw), "\n")
	if err != nil || len(lines) != 6 || lines[0] != whole || lines[1] != whole[:9] || lines[5] != "" {
		t.Errorf("%q, %v", lines, err)
	}
	for i, want := range []string{EventTorn, EventTool, EventTool} {
		var r Record
		if err := json.Unmarshal([]byte(lines[2+i]), &r); err != nil || r.Event != want || r.Time.IsZero() {
			t.Errorf("%q: %v, want %s", lines[2+i], err, want)
		}
	}
}

// TestPlantedLink: a link that somebody puts in the place of the file, when that is renamed or before, is not followed: the
// record ends, and not silently. One that was there in the beginning is, and is not looked at again.
func TestPlantedLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim, path := filepath.Join(dir, "victim"), filepath.Join(dir, "audit")
	for _, file := range []string{victim, path} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	told := 0
	l, err := Open(link, Options{OnFailure: func(error) { told++ }})
	if err != nil {
		t.Fatal(err)
	}
	plant := func(at string) {
		t.Helper()
		if err := errors.Join(os.Rename(at, at+".old"), os.Symlink(victim, at)); err != nil {
			t.Fatal(err)
		}
	}
	plant(link)
	if err := l.Write(Record{Event: EventTool}); err != nil || len(records(t, path)) != 1 {
		t.Errorf("the link that was there is another: %v", err)
	}
	plant(path)
	if err := l.Write(Record{Event: EventTool}); !errors.Is(err, ErrWrite) || told != 1 {
		t.Errorf("the file is a link: %v, told %d times", err, told)
	}
	if err := l.Close(); !errors.Is(err, ErrWrite) {
		t.Error(err)
	}
	if raw, err := os.ReadFile(victim); err != nil || len(raw) != 0 {
		t.Errorf("it was followed: %q, %v", raw, err)
	}
}

// TestFailureStays: after a record that could not be written none is, and somebody is told.
func TestFailureStays(t *testing.T) {
	t.Parallel()
	told := 0
	l, err := Open(filepath.Join(t.TempDir(), "audit"), Options{OnFailure: func(error) { told++ }})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.file.Close(); err != nil { // behind its back
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Write(Record{Event: EventTool}); !errors.Is(err, ErrWrite) {
			t.Errorf("error %v", err)
		}
	}
	if err := l.Close(); !errors.Is(err, ErrWrite) || told != 1 {
		t.Errorf("error %v, told %d times", err, told)
	}
}
