package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/toolspec"
)

func TestHostPaths(t *testing.T) {
	t.Parallel()
	odd := filepath.Join(t.TempDir(), "my agents")
	h := newHostPaths(odd, "")
	for text, want := range map[string]string{
		"nothing": "nothing",
		"open /srv/secret/plan.yaml: no such file":     "open …/plan.yaml: no such file",
		`"/srv/secret/a.prompt":7:3: bad`:              `"…/a.prompt":7:3: bad`,
		odd + "/fixer.prompt:4: bad":                   "…/fixer.prompt:4: bad",
		"/srv/a/x.yaml:1: (/srv/b/y.yaml), [/srv/z/q]": "…/x.yaml:1: (…/y.yaml), […/q]",
		`open C:\Users\me\a.prompt: denied`:            `open …/a.prompt: denied`,
		"file:///srv/secret/x":                         "file:…/x",
		"post https://api.example/v1/chat: 500":        "post https://api.example/v1/chat: 500",
		"cat /workspace/d/x.txt: no such file":         "cat /workspace/d/x.txt: no such file",
		"and/or 1/2":                                   "and/or 1/2",
	} {
		if got := h.hide(text); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
	told := toolspec.NewError(toolspec.CodeInvalid, "cannot read /srv/secret/x", "look into /srv/secret/y")
	got := h.error(told)
	var fail *toolspec.Error
	if !errors.As(got, &fail) || strings.Contains(fail.Message+fail.Remediation, "secret") || !strings.Contains(told.Message, "secret") {
		t.Errorf("%+v of %+v", fail, told)
	}
}
