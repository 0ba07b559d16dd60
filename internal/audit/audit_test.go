package audit

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
)

var must = checktest.Must

// records reads all lines of a file.
func records(t *testing.T, path string) (list []Record) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Errorf("%s: %v in %s", path, err, lines.Text())
		}
		list = append(list, r)
	}
	return list
}

func TestRecordHasWhatItsContextKnows(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit")
	l, err := Open(path, Options{})
	must(t, err)
	note := func(ctx context.Context) {
		t.Helper()
		if err := Note(ctx, func(r *Record) { r.Event, r.Argv = EventCommand, []string{"a", "b"} }); err != nil {
			t.Error(err)
		}
	}
	note(t.Context()) // without a log, this records nothing
	ctx := With(NewContext(t.Context(), l), func(r *Record) { r.Run, r.Step = "run_1", "s" })
	note(With(ctx, func(r *Record) { r.Tool = "t" }))
	note(ctx)
	must(t, l.Close())
	got := records(t, path)
	if len(got) != 2 || got[0].Run != "run_1" || got[0].Step != "s" || got[0].Tool != "t" || got[1].Tool != "" || len(got[0].Argv) != 2 || got[0].Time.IsZero() {
		t.Errorf("%+v", got)
	}
	if st, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

// TestCutLine verifies that a record does not continue a line that a full disk has cut.
func TestCutLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit")
	must(t, os.WriteFile(path, []byte("{}\n{\"event\":"), 0o600))
	for range 2 {
		l, err := Open(path, Options{})
		must(t, err)
		must(t, l.Write(Record{Event: EventTool}))
		must(t, l.Close())
	}
	raw, err := os.ReadFile(path)
	lines := strings.Split(string(raw), "\n")
	if err != nil || len(lines) != 5 || lines[1] != `{"event":` || !json.Valid([]byte(lines[2])) ||
		!json.Valid([]byte(lines[3])) {
		t.Errorf("%q, %v", lines, err)
	}
}

// TestCloseOfADevice verifies that a file that cannot be synchronized is not an error.
func TestCloseOfADevice(t *testing.T) {
	t.Parallel()
	l, err := Open(os.DevNull, Options{})
	must(t, err)
	must(t, l.Write(Record{Event: EventOpen}))
	must(t, l.Close())
}

func TestHash(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit")
	l, err := Open(path, Options{Hash: true})
	must(t, err)
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

// TestSettingsOnce: only the first record of a policy has the settings.
func TestSettingsOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit")
	l, err := Open(path, Options{})
	must(t, err)
	for _, policy := range []string{"a", "a", "", "b", "a"} {
		r := Record{Event: EventCommand, Policy: policy}
		if policy != "" {
			r.Settings = json.RawMessage(`{"image":"` + policy + `"}`)
		}
		if err := l.Write(r); err != nil {
			t.Error(err)
		}
	}
	var got []string
	for _, r := range records(t, path) {
		got = append(got, r.Policy+string(r.Settings))
	}
	if want := []string{`a{"image":"a"}`, "a", "", `b{"image":"b"}`, "a"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSharedFile: several logs on one file, as of several processes, lose and mix no records.
func TestSharedFile(t *testing.T) {
	t.Parallel()
	const writers, each = 4, 200
	path := filepath.Join(t.TempDir(), "audit")
	var wg sync.WaitGroup
	for w := range writers {
		l, err := Open(path, Options{})
		must(t, err)
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
	seen := map[string]bool{}
	for _, r := range records(t, path) {
		seen[r.Exec] = true
	}
	if len(seen) != writers*each {
		t.Errorf("%d records, want %d", len(seen), writers*each)
	}
}

// TestFailureStays verifies the behavior after a record could not be written: no more records are written, and
// OnFailure is called once.
func TestFailureStays(t *testing.T) {
	t.Parallel()
	told := 0
	l, err := Open(filepath.Join(t.TempDir(), "audit"), Options{OnFailure: func(error) { told++ }})
	must(t, err)
	if err := l.file.Close(); err != nil { // the log does not notice this
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
