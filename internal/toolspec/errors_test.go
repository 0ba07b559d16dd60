package toolspec

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// TestEverySentinelHasACode reads the sentinels from the source of package backend, so it also covers new ones.
func TestEverySentinelHasACode(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "../../backend/errors.go", nil, 0)
	checktest.Must(t, err)
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Err") && len(spec.Values) > 0 {
			declared++
		}
		return true
	})
	mapped := 0
	for _, s := range sentinels {
		if got := ErrorOf(fmt.Errorf("op: %w", s.err)); got.Code != s.code || !slices.Contains(Codes(), got.Code) {
			t.Errorf("%v has code %s, want %s", s.err, got.Code, s.code)
		}
		if !errors.Is(s.err, context.DeadlineExceeded) {
			mapped++
		}
	}
	if declared != mapped || declared < 10 {
		t.Errorf("package backend declares %d sentinels, %d have codes", declared, mapped)
	}
}

func TestErrorOf(t *testing.T) {
	t.Parallel()
	wrapped := &backend.Error{Op: "Exec", Backend: "docker", ID: "sbx_x", Err: fmt.Errorf("%w: no such sandbox", backend.ErrNotFound)}
	for _, tt := range []struct {
		err       error
		code      Code
		message   string
		retryable bool
	}{
		{wrapped, CodeNotFound, "not found: no such sandbox", false},
		{errors.New("open /var/lib/docker/secret: boom"), CodeInternal, "the operation failed inside Workcell", false},
		{fmt.Errorf("%w: 3 are open", backend.ErrCapacity), CodeCapacity, "at capacity: 3 are open", true},
		{fmt.Errorf("%w: x", backend.ErrImage), CodeUnavailable, "image unavailable: x", false},
		{
			fmt.Errorf("%w: pull 10.1.2.3:5000/x: lookup r.example on 10.0.0.2:53: read udp 172.17.0.1:3->[fd00::2]:53: i/o timeout", backend.ErrImage), CodeUnavailable,
			"image unavailable: pull 10.1.2.3:5000/x: lookup r.example on <address>: read udp <address>-><address>: i/o timeout", false,
		},
		{&sandbox.LaunchError{Reason: sandbox.LaunchNotFound, Message: "foo"}, CodeNotFound, "cannot start the command: foo", false},
		{&sandbox.LaunchError{Reason: sandbox.LaunchNoResources, Message: "foo"}, CodeCapacity, "cannot start the command: foo", true},
		{&session.ConflictError{Key: session.WorkflowKey("r", "n"), Fields: []string{"image", "env"}}, CodeExists, `the sandbox "n" of this run already exists with different settings: image, env`, false},
		{&Error{Code: CodeQuota, Message: "m"}, CodeQuota, "m", false},
	} {
		if got := ErrorOf(tt.err); got.Code != tt.code || got.Message != tt.message || got.Retryable != tt.retryable {
			t.Errorf("%v: %+v", tt.err, got)
		}
	}
}

// TestPlain verifies that advice for agents without code mode names none of its tools.
func TestPlain(t *testing.T) {
	t.Parallel()
	for _, code := range Codes() {
		if got := Failf(code, "m").Plain(); strings.Contains(got.Remediation, "sandbox_") || got.Message != "m" {
			t.Errorf("%s: %+v", code, got)
		}
	}
	if got := Failf(CodeLost, "m").WithRemediation("Use sandbox_x.").Plain(); got.Remediation != "Use sandbox_x." {
		t.Errorf("advice of a caller: %q", got.Remediation)
	}
}

// TestInstallErrors verifies that the error of a failed installation contains the exit code and the next step.
func TestInstallErrors(t *testing.T) {
	t.Parallel()
	refused := func(rule string) []sandbox.EgressRefusal {
		return []sandbox.EgressRefusal{{Host: "index.example:443", Rule: rule}}
	}
	for want, err := range map[string]*session.InstallError{
		"--egress-allow-private": {Step: "pip install", ExitCode: 2, Reason: backend.ErrInvalid, Refused: refused("address: private")},
		"setup.network.allow":    {Step: "setup[1]", ExitCode: 2, Reason: backend.ErrInvalid},
		"Only wheels":            {Step: "pip install", ExitCode: 2, Reason: backend.ErrInvalid},
	} {
		got := ErrorOf(err)
		if !strings.Contains(got.Remediation, want) || !strings.Contains(got.Message, err.Step+" failed: exit code 2") {
			t.Errorf("%s: %+v", want, got)
		}
	}
}
