package session_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/session"
)

func TestEnvLayers(t *testing.T) {
	t.Parallel()
	image := []string{"PATH=/opt/image/bin", "HOME=/root", "ONLY_IMAGE=1", "BOTH=image", "ALL=image", "malformed", "=x", "WORKCELL_EXEC=forged"}
	base := session.BaseEnv("/workspace", image, map[string]string{"BOTH": "session", "ALL": "session", "ONLY_SESSION": "2"})
	got := session.ExecEnv(base, map[string]string{"ALL": "request", "LD_PRELOAD": "x.so"}, "00-trace")
	want := []string{
		"ALL=request", "BOTH=session", "HOME=/workspace", "LANG=C.UTF-8", "LD_PRELOAD=x.so", "ONLY_IMAGE=1",
		"ONLY_SESSION=2", "PATH=/opt/image/bin", "PYTHONPYCACHEPREFIX=/tmp/.pycache", "TRACEPARENT=00-trace",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if _, leaked := base["ALL"]; !leaked || base["ALL"] != "session" {
		t.Errorf("the request changed the session's environment: ALL=%q", base["ALL"])
	}
	bare := session.ExecEnv(session.BaseEnv("/workspace", nil, nil), nil, "")
	want = []string{"HOME=/workspace", "LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPYCACHEPREFIX=/tmp/.pycache"}
	if diff := cmp.Diff(want, bare); diff != "" {
		t.Errorf("default environment (-want +got):\n%s", diff)
	}
}
