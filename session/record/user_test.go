package record_test

import (
	"errors"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/record"
)

func TestParseUser(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ in, want string }{
		{"", "1000:1000"}, {"root", "0:0"}, {"0", "0:0"}, {"00:5", "0:5"}, {"1001", "1001:1001"}, {"1001:50", "1001:50"},
		{"2147483647:1", "2147483647:1"},
	} {
		if got, err := record.ParseUser(test.in); err != nil || got != test.want {
			t.Errorf("ParseUser(%q) = %q, %v, want %q", test.in, got, err, test.want)
		}
	}
	for _, in := range []string{"nobody", "1:", ":1", "-1", "+0", "1:+0", "2147483648", "4294967296", "18446744073709551616", "1:2:3", " 0", "0x0", "1e3", "１"} {
		if got, err := record.ParseUser(in); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("ParseUser(%q) = %q, %v, want ErrInvalid", in, got, err)
		}
	}
}
