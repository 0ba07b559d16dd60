package bound

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestAwait verifies that Await retries only passing errors, reports them once, and ends with its limit or its context.
func TestAwait(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for name, test := range map[string]struct {
		fails  int // calls that fail
		passes bool
		until  time.Duration // end of the context
		want   error
		after  time.Duration
	}{
		"comes back": {3, true, time.Hour, nil, 3 * time.Second}, "at once": {0, true, time.Hour, nil, 0},
		"final error": {3, false, time.Hour, away, 0}, "stays away": {1000, true, time.Hour, away, time.Minute},
		"context": {1000, true, 10 * time.Second, away, 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), test.until+time.Millisecond)
			defer cancel()
			var out strings.Builder
			log, passes := slog.New(slog.NewTextHandler(&out, nil)), func(error) bool { return test.passes }
			begin, calls := time.Now(), 0
			_, err := Await(ctx, time.Minute, log, "waits", passes, func() (int, error) {
				if calls++; calls <= test.fails {
					return 0, away
				}
				return calls, nil
			})
			after, told := time.Since(begin).Truncate(time.Second), strings.Count(out.String(), "msg=waits error=away")
			if err != test.want || after != test.after || (told == 1) != (calls > 1) {
				t.Errorf("%s: %v after %v, told %d times in %d calls", name, err, after, told, calls)
			}
		})
	}
}
