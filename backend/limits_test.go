package backend_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestLimitTable verifies that every field of Limits has one row, and that Merge, Clamp, and Validate use it.
func TestLimitTable(t *testing.T) {
	t.Parallel()
	if rows, fields := len(backend.LimitTable()), reflect.TypeFor[backend.Limits]().NumField(); rows != fields {
		t.Errorf("%d rows for %d fields", rows, fields)
	}
	seen := map[*int64]bool{}
	var all backend.Limits
	for _, row := range backend.LimitTable() {
		field := row.Of(&all)
		if seen[field] {
			t.Errorf("%s has the field of another row", row.Name)
		}
		seen[field] = true
		for value, ok := range map[int64]bool{0: true, row.Min: true, row.Max: true, row.Min - 1: row.Min == 1, row.Max + 1: false, -1: false} {
			var l backend.Limits
			*row.Of(&l) = value
			var bad *backend.LimitError
			if err := l.Validate(); (err == nil) != ok || err != nil && (!errors.As(err, &bad) || bad.Limit.Name != row.Name || !errors.Is(err, backend.ErrInvalid)) {
				t.Errorf("%s of %d: %v", row.Name, value, err)
			}
		}
		var one, two backend.Limits
		*row.Of(&one), *row.Of(&two) = row.Min, row.Max
		if one.Merge(two) != one || (backend.Limits{}).Merge(one) != one {
			t.Errorf("%s: Merge", row.Name)
		}
		if two.Clamp(one) != one || one.Clamp(two) != one || (backend.Limits{}).Clamp(one) != one || one.Clamp(backend.Limits{}) != one {
			t.Errorf("%s: Clamp", row.Name)
		}
		*field = row.Default
	}
	if all != backend.DefaultLimits() {
		t.Errorf("defaults %+v", backend.DefaultLimits())
	}
	for want, l := range map[string]backend.Limits{
		"memory_mb must be 16 to 4194304, not 1: invalid argument":                      {MemoryBytes: 1 << 20},
		"memory_mb in bytes must be 16777216 to 4398046511104, not 5: invalid argument": {MemoryBytes: 5},
		"pids must be 16 to 4194304, not 3: invalid argument":                           {PIDs: 3},
	} {
		if err := l.Validate(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestFit: default sizes of /tmp and /dev/shm leave memory for programs, and requested sizes are kept.
func TestFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ memory, tmp, shm, wantTmp, wantShm int64 }{ // in MiB; 0: not requested
		{2048, 0, 0, 256, 512}, {512, 0, 0, 256, 128}, {256, 0, 0, 128, 64}, {64, 0, 0, 32, 16},
		{128, 4, 0, 4, 62}, {200, 4, 0, 4, 64}, {2048, 1024, 0, 1024, 512}, {2048, 1536, 0, 1536, 256},
		{2048, 0, 1300, 256, 1300}, {128, 0, 64, 32, 64}, {64, 0, 60, 2, 60}, {64, 0, 70, 1, 70},
	} {
		asked := backend.Limits{MemoryBytes: c.memory << 20, TmpBytes: c.tmp << 20, ShmBytes: c.shm << 20}
		got := asked.Merge(backend.DefaultLimits()).Fit(asked)
		if got.TmpBytes>>20 != c.wantTmp || got.ShmBytes>>20 != c.wantShm {
			t.Errorf("%+v: /tmp %d MiB, /dev/shm %d MiB", c, got.TmpBytes>>20, got.ShmBytes>>20)
		}
	}
}

// TestDocumentation: docs/reference/limits.md has the table as it is.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "docs", "reference", "limits.md"))
	checktest.Must(t, err)
	lines := strings.Split(string(raw), "\n")
	for _, row := range backend.LimitTable() {
		least, most := row.Bounds()
		end := fmt.Sprintf("| %d | %d | %d |", least, most, row.Default/row.Scale)
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "| `"+row.Name+"` |") && strings.HasSuffix(l, end) }) {
			t.Errorf("docs/reference/limits.md has no row of %s that ends in %s", row.Name, end)
		}
	}
}
