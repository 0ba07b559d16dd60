// Package interpreter tests that variables are kept between programs in real sandboxes.
package interpreter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/interpreter"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

var must = checktest.Must

// Images built by `make images`.
const (
	pythonImage = "workcell/python:3.11"
	nodeImage   = "workcell/node:22"
	plainImage  = "workcell/net:12" // has neither language
)

// desk is a sandbox.
type desk struct {
	t    *testing.T
	s    *session.Session
	lang string
}

func on(t *testing.T, lang, image string, test func(d *desk)) {
	enginetest.On(t, func(t *testing.T, engine string) {
		m := enginetest.Manager(t, enginetest.Driver(t, engine), &session.Options{Instance: "interpreter-" + record.NewID()})
		s, _, err := m.Open(t.Context(), session.UserKey("u"), session.Request{Image: image})
		must(t, err)
		test(&desk{t, s, lang})
	})
}

func (d *desk) run(code string, timeout time.Duration) interpreter.Result {
	d.t.Helper()
	res, err := interpreter.Run(d.t.Context(), d.s.Sandbox, interpreter.Request{Language: d.lang, Code: code, Exec: sandbox.ExecRequest{Timeout: timeout}})
	must(d.t, err)
	return res
}

// want checks the output of a program, whether it failed, and the value.
func (d *desk) want(code, printed, failure, value string) {
	d.t.Helper()
	res := d.run(code, time.Minute)
	out, err := string(res.Stdout.Bytes()), string(res.Stderr.Bytes())
	if out != printed || res.Text != value || (failure == "") != (res.ExitCode == 0) || !strings.Contains(err, failure) || res.Lost {
		d.t.Errorf("%s\nprints %q, fails with %q (exit code %d), has the value %q, lost %v", code, out, err, res.ExitCode, res.Text, res.Lost)
	}
}

func TestPython(t *testing.T) {
	on(t, interpreter.Python, pythonImage, func(d *desk) {
		d.want("import os\nx = 41\nos.system('echo from a child')\nprint('hello')", "from a child\nhello\n", "", "")
		d.want("x + 1", "", "", "42")
		d.want("def f(n):\n    return 1 / n\nf(0)", "", "line 2, in f\n    return 1 / n", "")
		d.want("f(", "", "SyntaxError", "")
		d.want("import asyncio\nawait asyncio.sleep(0.01)\n'awaited'", "", "", "'awaited'")
		if res := d.run("import sys\nsys.exit(3)", time.Minute); res.ExitCode != 3 || res.Lost {
			d.t.Errorf("%+v", res)
		}
		d.want("x", "", "", "41")
		d.want("import os\ndef full(*a): raise OSError('disk full')\nreplace, os.replace = os.replace, full", "", "", "")
		if res := d.run("x", time.Minute); res.ExitCode != 0 || res.Lost || !strings.Contains(string(res.Stderr.Bytes()), "disk full") {
			d.t.Errorf("%+v", res)
		}
		d.want("os.replace = replace\nx", "", "", "41")
	})
}

func TestNode(t *testing.T) {
	on(t, interpreter.Node, nodeImage, func(d *desk) {
		d.want("const x = 41\nconsole.log('hello')", "hello\n", "", "")
		d.want("const x = 42; x", "", "", "42") // runs again
		d.want("function f() { return null.y }\nf()", "", "at f (program.js:1", "")
		d.want("f(", "", "SyntaxError", "")
		d.want("const y = await new Promise(r => setTimeout(() => r(x + 1), 10))\ny", "", "", "43")
		d.want("({ y })", "", "", "{ y: 43 }")
		if res := d.run("process.stdout.write('x'.repeat(17 << 20)); y", time.Minute); res.ExitCode != 0 || res.Lost || res.Text != "43" {
			d.t.Errorf("exit code %d, value %q, lost %v", res.ExitCode, res.Text, res.Lost)
		}
	})
}

// loops returns a program that never ends, and a program that ignores interrupts too.
func loops() map[string][2]string {
	return map[string][2]string{
		interpreter.Python: {"while True: pass", "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"},
		interpreter.Node:   {"while (true) {}", "require('child_process').execSync('trap \"\" INT; sleep 1000; sleep 1000')"},
	}
}

// TestTimeout: a program is interrupted and the variables stay, unless the program ignores interrupts.
func TestTimeout(t *testing.T) {
	for lang, image := range map[string]string{interpreter.Python: pythonImage, interpreter.Node: nodeImage} {
		t.Run(lang, func(t *testing.T) {
			on(t, lang, image, func(d *desk) {
				d.want("x = 7; x", "", "", "7")
				if res := d.run(loops()[lang][0], 4*time.Second); res.Status != sandbox.ExecTimedOut || res.Lost {
					d.t.Errorf("%+v", res)
				}
				d.want("x", "", "", "7")
				if res := d.run(loops()[lang][1], 4*time.Second); res.Status != sandbox.ExecTimedOut || !res.Lost {
					d.t.Errorf("deaf: %+v", res)
				}
				if res := d.run("1 + 1", time.Minute); res.Text != "2" || !res.Lost {
					d.t.Errorf("afterwards: %+v", res)
				}
				d.want("2 + 2", "", "", "4")
			})
		})
	}
}

// TestImages: values with an image representation, and matplotlib figures, are returned as images.
func TestImages(t *testing.T) {
	const png = "\x89PNG\r\n"
	on(t, interpreter.Python, pythonImage, func(d *desk) {
		res := d.run(fmt.Sprintf("class P:\n    def _repr_png_(self): return %s\nP()", `b"\x89PNG\r\n"`), time.Minute)
		if len(res.Images) != 1 || string(res.Images[0]) != png || !strings.Contains(res.Text, "P object") {
			d.t.Errorf("%+v", res.Value)
		}
		if again, err := interpreter.Take(d.t.Context(), d.s.Sandbox, "", res.ExecID); err != nil || again.Text != "" {
			d.t.Errorf("a second time: %+v, %v", again, err)
		}
	})
}

// TestNewHost: another process can continue with the variables.
func TestNewHost(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		b := enginetest.Driver(t, engine)
		o := session.Options{Instance: "interpreter-" + record.NewID(), Store: record.NewMemoryStore()}
		first, err := session.NewManager(b, &o)
		must(t, err)
		s, _, err := first.Open(t.Context(), session.UserKey("u"), session.Request{Image: pythonImage})
		must(t, err)
		(&desk{t, s, interpreter.Python}).want("x = 1", "", "", "")
		must(t, first.Detach(t.Context()))
		m := enginetest.Manager(t, b, &o)
		s, _, err = m.Open(t.Context(), session.UserKey("u"), session.Request{Image: pythonImage})
		must(t, err)
		ids, err := interpreter.Running(t.Context(), s.Sandbox)
		must(t, err)
		execs, err := s.Commands(t.Context())
		must(t, err)
		for _, st := range execs {
			if !st.Done() && !slices.Contains(ids, st.ExecID) { // resuming a run would kill other processes
				t.Errorf("%s does not run an interpreter", st.ExecID)
			}
		}
		(&desk{t, s, interpreter.Python}).want("x", "", "", "1")
	})
}

// TestHandedBack: a program that runs longer than its caller waits has its value after its end.
func TestHandedBack(t *testing.T) {
	on(t, interpreter.Python, pythonImage, func(d *desk) {
		res, err := interpreter.Run(d.t.Context(), d.s.Sandbox, interpreter.Request{
			Language: d.lang, Code: "import time\ntime.sleep(5)\nprint('late')\n'value'", Exec: sandbox.ExecRequest{Background: true},
		})
		must(d.t, err)
		if res.Done() {
			d.t.Fatalf("%+v", res)
		}
		ended, err := d.s.Command(res.ExecID).Wait(d.t.Context(), -1)
		must(d.t, err)
		value, err := interpreter.Take(d.t.Context(), d.s.Sandbox, "", res.ExecID)
		if err != nil || value.Text != "'value'" || string(ended.Stdout.Bytes()) != "late\n" {
			d.t.Errorf("%+v, %+v, %v", ended, value, err)
		}
	})
}

// TestSideBySide: programs started concurrently run one after the other in one interpreter.
func TestSideBySide(t *testing.T) {
	on(t, interpreter.Python, pythonImage, func(d *desk) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				res, err := interpreter.Run(context.Background(), d.s.Sandbox, interpreter.Request{Language: d.lang, Code: "n = globals().get('n', 0) + 1"})
				if err != nil || res.ExitCode != 0 {
					d.t.Errorf("%+v, %v", res, err)
				}
			})
		}
		wg.Wait()
		d.want("n", "", "", "8")
	})
}

// TestMissing verifies the errors for an image without the language and for an unknown language.
func TestMissing(t *testing.T) {
	t.Parallel()
	m := enginetest.Manager(t, enginetest.Driver(t, "docker"), &session.Options{Instance: "interpreter-" + record.NewID()})
	s, _, err := m.Open(t.Context(), session.UserKey("u"), session.Request{Image: plainImage})
	must(t, err)
	for lang, want := range map[string]error{interpreter.Node: backend.ErrUnsupported, "perl": backend.ErrInvalid} {
		if _, err := interpreter.Run(t.Context(), s.Sandbox, interpreter.Request{Language: lang, Code: "1"}); !errors.Is(err, want) {
			t.Errorf("%s: %v", lang, err)
		}
	}
}

// TestTool: sandbox_exec runs programs for a model, and shows their images to the model.
func TestTool(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		m := enginetest.Manager(t, enginetest.Driver(t, engine), &session.Options{Instance: "interpreter-" + record.NewID()})
		calls, err := (&tools.Plugin{Manager: m}).Calls(session.Run(record.UserScope("u")), tools.Sandbox{Image: pythonImage}, nil)
		must(t, err)
		exec := func(tool string, args map[string]any) (out map[string]any, images int) {
			t.Helper()
			raw, err := json.Marshal(args)
			must(t, err)
			answer, err := calls.Call(t.Context(), tool, raw)
			must(t, err)
			raw, err = json.Marshal(answer)
			must(t, err)
			must(t, json.Unmarshal(raw, &out))
			return out, len(toolspec.ImagesOf(answer))
		}
		program := func(code string) map[string]any { return map[string]any{"interpreter": "python", "code": code} }
		if out, _ := exec("sandbox_exec", program("x = 20")); out["ok"] != nil || out["exit_code"] != 0.0 || out["value"] != nil {
			t.Errorf("%v", out)
		}
		out, images := exec("sandbox_exec", program(drawing))
		if images != 1 || out["value"] != "'drawn 21'" || out["stdout"] != "here it is\n" {
			t.Errorf("%v, %d images", out, images)
		}
		slow := program("import time\ntime.sleep(5)\nx + 2")
		slow["yield_ms"] = 0
		out, _ = exec("sandbox_exec", slow)
		if out["status"] != "running" {
			t.Errorf("%v", out)
		}
		if out, _ = exec("sandbox_exec_wait", map[string]any{"exec_id": out["exec_id"]}); out["value"] != "22" {
			t.Errorf("%v", out)
		}
		endless := program("while True: pass")
		endless["timeout_seconds"] = 1
		if out, _ := exec("sandbox_exec", endless); !strings.Contains(out["stderr"].(string), "the interpreter keeps its variables") {
			t.Errorf("%v", out)
		}
		endless["cmd"] = []string{"true"}
		if out, _ := exec("sandbox_exec", endless); out["error"] == nil {
			t.Errorf("%v", out)
		}
	})
}

// drawing draws with a module that behaves like matplotlib's, because the images of `make images` do not contain
// matplotlib.
const drawing = `
import sys, types, zlib, struct
def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
picture = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
class Figure:
    def savefig(self, f, **_): f.write(picture)
class Plot(types.ModuleType):
    open = [1]
    def get_fignums(self): return self.open
    def figure(self, n): return Figure()
    def close(self, what): self.open = []
sys.modules["matplotlib.pyplot"] = Plot("matplotlib.pyplot")
print("here it is")
"drawn %d" % (x + 1)
`
