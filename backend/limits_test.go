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
)

// TestLimitTable: every field of Limits has one row, and every rule reads it.
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

// TestDocumentation: docs/limits.md has the table as it is.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "docs", "limits.md"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(raw), "\n")
	for _, row := range backend.LimitTable() {
		least, most := row.Bounds()
		end := fmt.Sprintf("| %d | %d | %d |", least, most, row.Default/row.Scale)
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "| `"+row.Name+"` |") && strings.HasSuffix(l, end) }) {
			t.Errorf("docs/limits.md has no row of %s that ends in %s", row.Name, end)
		}
	}
}
