package postgres

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestClassify verifies that only errors of damaged data are reported as such. A lost connection can be retried.
func TestClassify(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]error{
		"XX000": nil, "XX001": ErrCorrupt, "XX002": ErrCorrupt, "25P03": ErrUnreachable, "53100": ErrFull,
	} {
		if got := classify(&pgconn.PgError{Code: code}); !errors.Is(got, want) {
			t.Errorf("%s: %v, want %v", code, got, want)
		}
	}
}
