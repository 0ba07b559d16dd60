package lib_test

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

func TestToolsCommand(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	bin := install(t) + "/bin/tools"
	for name, tc := range map[string]struct {
		args   string // separated by |
		in     string
		code   int
		stdout string // complete output
		stderr string // part of the output
	}{
		"data":               {args: `call|orders_lookup|{"id": "42", "n": 1.50}`, stdout: `{"id":"42","n":1.5}` + "\n"},
		"server and tool":    {args: `call|orders.lookup|{}`, stdout: "{}\n"},
		"dashes":             {args: `call|my-server.get-thing`, stdout: "{}\n"},
		"standard input":     {args: `call|orders.lookup|-`, in: `{"id": [1]}`, stdout: `{"id":[1]}` + "\n"},
		"text":               {args: `call|orders.text`, stdout: `{"a": 1}` + "\n"},
		"saved binary":       {args: `call|big.binary`, stdout: "\x00\xff"},
		"saved":              {args: `call|big.rows`, stdout: string(rows())},
		"files":              {args: `call|orders.picture`, stdout: "seen\n", stderr: `"kind":"image/png"`},
		"denied":             {args: `call|orders.refund`, code: 77, stderr: `{"code":"permission_denied","message":"too much","remediation":"Do something else.","retryable":false}`},
		"timed out":          {args: `call|orders.fail|{"code":"timeout"}`, code: 124, stderr: `"timeout"`},
		"unavailable":        {args: `call|orders.fail|{"code":"unavailable"}`, code: 69, stderr: `"unavailable"`},
		"failed":             {args: `call|orders.fail|{"code":"capacity"}`, code: 1, stderr: `"retryable":true`},
		"plain error":        {args: `call|orders.broken`, code: 1, stderr: `{"code":"tool_failed","message":"no luck"`},
		"too slow":           {args: `call|orders.slow|{}|--timeout|200ms`, code: 124, stderr: `"timeout"`},
		"link broken":        {args: `call|flaky.write`, code: 69, stderr: `"outcome_unknown":true`},
		"no such tool":       {args: `call|orders.nothing`, code: 1, stderr: `"invalid_argument"`},
		"no object":          {args: `call|orders.lookup|[1]`, code: 2, stderr: "not a JSON object"},
		"no JSON":            {args: `call|orders.lookup|{id: 1}`, code: 2, stderr: "not a JSON object"},
		"search":             {args: `search|LOOKS thing`, stdout: "my-server.get-thing(id, note?) - Looks one up.\n"},
		"ls of a server":     {args: `ls|my-server`, stdout: "my-server.get-thing(id, note?) - Looks one up.\n"},
		"ls, no index":       {args: `ls|flaky`, stdout: "flaky_leave - \nflaky_put - \nflaky_read - \nflaky_write - \n"},
		"nothing found":      {args: `search|xyzzy`, code: 1, stderr: "not_found"},
		"show nothing":       {args: `show|orders.nothing`, code: 1, stderr: "not_found"},
		"usage":              {args: `call`, code: 2, stderr: "usage: tools ls"},
		"unknown flag":       {args: `call|x|{}|--sav|y`, code: 2, stderr: "usage: tools ls"},
		"negative timeout":   {args: `call|x|{}|--timeout|-5s`, code: 2, stderr: "usage: tools ls"},
		"nothing to do":      {args: ``, code: 2, stderr: "usage: tools ls"},
		"arguments too many": {args: `call|orders.lookup|{}|{}`, code: 2, stderr: "usage: tools ls"},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "link broken" { // it also breaks the connections of others
				t.Parallel()
			}
			code, stdout, stderr := tools(t, bin, h.address, tc.in, strings.Split(tc.args, "|")...)
			if code != tc.code || stdout != tc.stdout || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("exit code %d, %.200q, %q; want %d, %.200q, %q", code, stdout, stderr, tc.code, tc.stdout, tc.stderr)
			}
		})
	}
	if _, stdout, _ := tools(t, bin, h.address, "", "show", "orders.text"); !strings.Contains(stdout, `"name": "orders_text",`) || !strings.Contains(stdout, `"type": "object"`) {
		t.Errorf("show printed %s", stdout)
	}
	if _, stdout, _ := tools(t, bin, h.address, "", "call", "big.text", "--save", "x"); !strings.HasPrefix(stdout, `{"$saved":{"bytes":1049601,`) {
		t.Errorf("--save printed %.200s", stdout)
	}
	if code, _, stderr := tools(t, bin, "", "", "ls"); code != 69 || !strings.Contains(stderr, "no host tools") {
		t.Errorf("without tools: %d, %s", code, stderr)
	}
	if code, _, stderr := tools(t, "/bin/sh", h.address, "", "-c", bin+" ls >/dev/full"); code != 1 {
		t.Errorf("to a full device: %d, %s", code, stderr)
	}
}

func tools(t *testing.T, bin, address, in string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env, cmd.Stdin = []string{"WORKCELL_TOOLS=" + address, "TRACEPARENT=00-aa-bb-01"}, strings.NewReader(in)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return code, out.String(), errs.String()
}
