package record_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/record"
)

func TestValidateEnv(t *testing.T) {
	t.Parallel()
	good := map[string]string{"A": "", "B": "x=y\n'\"ü", "with space": "1", "LD_PRELOAD": "a", "PATH": "/x", "TRACEPARENT": "x"}
	if err := record.ValidateEnv(good); err != nil {
		t.Errorf("ValidateEnv(good) = %v", err)
	}
	for _, test := range []struct {
		env  map[string]string
		want error
	}{
		{map[string]string{"": "x"}, backend.ErrInvalid},
		{map[string]string{"A=B": "x"}, backend.ErrInvalid},
		{map[string]string{"A\x00": "x"}, backend.ErrInvalid},
		{map[string]string{"A": "x\x00"}, backend.ErrInvalid},
		{map[string]string{"WORKCELL_EXEC": "x"}, backend.ErrInvalid},
		{map[string]string{"A": strings.Repeat("x", 1<<20)}, backend.ErrTooLarge},
	} {
		err := record.ValidateEnv(test.env)
		if !errors.Is(err, test.want) {
			t.Errorf("ValidateEnv(%.40q) = %v, want %v", test.env, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "xxxx") {
			t.Errorf("the error shows a value: %.200v", err)
		}
	}
}

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
