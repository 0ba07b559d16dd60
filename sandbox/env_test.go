package sandbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/sandbox"
)

func TestEnvLayers(t *testing.T) {
	t.Parallel()
	image := []string{"PATH=/opt/image/bin", "HOME=/root", "USER=root", "LOGNAME=root", "ONLY_IMAGE=1", "BOTH=image", "ALL=image", "malformed", "=x", "WORKCELL_EXEC=forged"}
	hello := wire.Hello{UID: 1000, Workdir: "/workspace", Home: "/workspace/.workcell/home"}
	base := sandbox.BaseEnv(hello, image, map[string]string{"BOTH": "session", "ALL": "session", "ONLY_SESSION": "2"})
	got := sandbox.ExecEnv(base, map[string]string{"ALL": "request", "LD_PRELOAD": "x.so"}, "00-trace")
	want := []string{
		"ALL=request", "BOTH=session", "GIT_CONFIG_SYSTEM=/.workcell/lib/gitconfig", "HOME=/workspace/.workcell/home", "LANG=C.UTF-8",
		"LD_PRELOAD=x.so", "LOGNAME=user", "ONLY_IMAGE=1", "ONLY_SESSION=2", "PATH=/opt/image/bin", "PYTHONPYCACHEPREFIX=/tmp/.pycache",
		"TRACEPARENT=00-trace", "USER=user",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if _, leaked := base["ALL"]; !leaked || base["ALL"] != "session" {
		t.Errorf("the request changed the session's environment: ALL=%q", base["ALL"])
	}
	// A guest of an earlier version, as root.
	bare := sandbox.ExecEnv(sandbox.BaseEnv(wire.Hello{Workdir: "/workspace"}, nil, nil), nil, "")
	want = []string{
		"HOME=/workspace", "LANG=C.UTF-8", "LOGNAME=root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"PYTHONPYCACHEPREFIX=/tmp/.pycache", "USER=root",
	}
	if diff := cmp.Diff(want, bare); diff != "" {
		t.Errorf("default environment (-want +got):\n%s", diff)
	}
}

func TestValidateEnv(t *testing.T) {
	t.Parallel()
	good := map[string]string{"A": "", "B": "x=y\n'\"ü", "with space": "1", "LD_PRELOAD": "a", "PATH": "/x", "TRACEPARENT": "x"}
	if err := sandbox.ValidateEnv(good); err != nil {
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
		err := sandbox.ValidateEnv(test.env)
		if !errors.Is(err, test.want) {
			t.Errorf("ValidateEnv(%.40q) = %v, want %v", test.env, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "xxxx") {
			t.Errorf("the error shows a value: %.200v", err)
		}
	}
}
