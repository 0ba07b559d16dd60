//go:build linux

package executor_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/executor"
)

// talker is a driver of a shell script with a two-way protocol. Each printed line is echoed to its input, and "end" is
// its last line.
type talker struct{ cli }

func (c talker) Prepare(t executor.Task, in executor.Inside) (executor.Invocation, error) {
	inv, err := c.cli.Prepare(t, in)
	inv.Talk = func(stdin io.Writer) executor.Parser {
		fmt.Fprintln(stdin, "hello") // never fails
		return echo{stdin}
	}
	return inv, err
}

type echo struct{ out io.Writer }

func (p echo) Line(b []byte) []executor.Event {
	if string(b) == "end" {
		return []executor.Event{{Kind: executor.KindEnd, End: &executor.End{Outcome: executor.Completed, Text: "bye"}}}
	}
	if _, err := p.out.Write(append(b, '\n')); err != nil {
		return []executor.Event{{Kind: executor.KindEnd, End: &executor.End{Outcome: executor.Crashed, Detail: err.Error()}}}
	}
	text, _ := json.Marshal(string(b)) // encoding a string never fails
	return []executor.Event{{Kind: executor.KindRaw, Raw: text}}
}

// TestTalk verifies a CLI with a two-way protocol. Its input is closed after its last line, and its process tree is
// killed soon afterwards. A CLI that never reads cannot fill the host's memory.
func TestTalk(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		o      executor.Options
		want   executor.Outcome
		detail string
	}{
		"answers":        {`read a; test "$a" = hello || exit 9; echo ping; read a; test "$a" = ping || exit 9; echo end; cat`, executor.Options{}, executor.Completed, ""},
		"does not leave": {`echo end; trap "" TERM; while :; do sleep 0.1; done`, executor.Options{}, executor.Completed, ""},
		"says it twice":  {`echo end; echo end`, executor.Options{}, executor.Completed, ""},
		"never reads":    {`yes "$(head -c 100000 /dev/zero | tr '\0' x)"`, executor.Options{}, executor.Crashed, "it does not read the responses to its requests: invalid"},
		"says nothing":   {`exit 0`, executor.Options{}, executor.Unparsable, "exit code 0"},
		"stalls":         {`echo x; sleep 100`, executor.Options{Stall: time.Second}, executor.Stalled, "no events for 1s"},
		"reads on":       {`cat`, executor.Options{Timeout: time.Second}, executor.TimedOut, "after 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := newSandbox(t)
			res, err := executor.Run(t.Context(), s, talker{}, executor.Task{Prompt: test.script}, &test.o)
			must(t, err)
			if res.Outcome != test.want || !strings.HasPrefix(res.Detail, test.detail) || test.detail == "" && res.Detail != "" {
				t.Errorf("%s %q", res.Outcome, res.Detail)
			}
		})
	}
}
