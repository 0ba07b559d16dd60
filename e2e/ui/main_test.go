//go:build linux

// Package ui opens the pages of `workcell ui` in a browser. Each test starts the command on a state with real runs, and
// runs the browser script of the same name.
package ui

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/e2e/npmtest"
	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/workflow/pgjournal"
	"github.com/workcell-dev/workcell/workflow/runstore"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

// binary is the path of the command, built once before the first test.
var binary string

func TestMain(m *testing.M) { os.Exit(rig.Tests{M: m, Binary: &binary}.Run()) }

// onEachState runs a test on a state in a file and, if WORKCELL_TEST_POSTGRES is set, on a state in PostgreSQL.
func onEachState(t *testing.T, test func(*stage)) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) { t.Parallel(); test(newStage(t, "")) })
	if os.Getenv(pgtest.Variable) != "" {
		t.Run("postgres", func(t *testing.T) { t.Parallel(); test(newStage(t, pgtest.Database(t))) })
	}
}

// stage is a state and its server.
type stage struct {
	testing.TB
	dir     string // working directory of the commands, which is also the home directory
	state   string // URL of a database; empty means a file
	address string
	server  *rig.Process
	link    string // first login link of the server
}

func newStage(t testing.TB, state string) *stage {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // the server gets this address each time
	checktest.Must(t, err)
	s := &stage{TB: t, dir: t.TempDir(), state: state, address: l.Addr().String()}
	checktest.Must(t, l.Close())
	t.Cleanup(s.removeSandboxes)
	checktest.Must(t, os.CopyFS(filepath.Join(s.dir, "flows"), os.DirFS("testdata")))
	return s
}

// url returns the address of the page for the browser.
func (s *stage) url() string {
	before, _, _ := strings.Cut(s.link, "/login")
	return before
}

func (s *stage) command(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Dir = s.dir
	cmd.Env = append(rig.Environ(), "HOME="+s.dir, "WORKCELL_STATE_DIR="+filepath.Join(s.dir, "state"),
		"WORKCELL_STATE="+s.state, "WORKCELL_BACKEND=local", "WORKCELL_REAPER=off", "TZ=UTC")
	return cmd
}

// workcell runs the command, which must exit with the code.
func (s *stage) workcell(code int, args ...string) string {
	s.Helper()
	res := rig.Run(s, s.command(args...))
	if res.Code != code {
		s.Fatalf("workcell %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), res.Code, code, res.Stdout, res.Stderr)
	}
	return strings.TrimSpace(res.Stdout)
}

// removeSandboxes removes the sandboxes of the state. Killed runs leave theirs.
func (s *stage) removeSandboxes() {
	var list []struct{ ID string }
	s.decode(s.workcell(0, "sandbox", "ls", "-o", "json"), &list)
	for _, box := range list {
		s.workcell(0, "sandbox", "rm", box.ID)
	}
}

// run runs a workflow and returns the run's ID.
func (s *stage) run(code int, args ...string) string {
	s.Helper()
	var out struct {
		ID string `json:"run_id"`
	}
	s.decode(s.workcell(code, append([]string{"run", "-o", "json"}, args...)...), &out)
	return out.ID
}

func (s *stage) decode(text string, to any) {
	s.Helper()
	if err := json.Unmarshal([]byte(text), to); err != nil {
		s.Fatalf("%v: %s", err, text)
	}
}

// serve starts the server.
func (s *stage) serve(args ...string) {
	s.Helper()
	cmd := s.command(append([]string{"ui", "--no-open", "--listen", s.address}, args...)...)
	out, err := cmd.StdoutPipe()
	checktest.Must(s, err)
	s.server = rig.Start(s, cmd)
	if s.link, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		s.server.Wait()
		s.Fatalf("the server: %v\n%s", err, s.server.Text())
	}
	s.link = strings.TrimSpace(s.link)
}

// newLink asks the running server for a login link, as a second `workcell ui` does.
func (s *stage) newLink() any { return s.workcell(0, "ui", "--no-open", "--listen", s.address) }

// journal opens the journal of the state.
func (s *stage) journal() runstore.Store {
	s.Helper()
	var j interface {
		runstore.Store
		Close() error
	}
	var err error
	if s.state == "" {
		j, err = sqlitejournal.Open(s.Context(), filepath.Join(s.dir, "state", "state.db"))
	} else {
		j, err = pgjournal.Open(s.Context(), s.state)
	}
	checktest.Must(s, err)
	s.Cleanup(func() { _ = j.Close() }) // every entry was written
	return j
}

// answers has a function for each question of a script.
type answers map[string]func() any

// browse runs a script, which must find no fault. "others" of the data are origins allowed for the script.
func (s *stage) browse(script string, data map[string]any, ask answers) {
	s.Helper()
	node, modules := npmtest.Tools(s.TB)
	browser, err := rig.Output(exec.Command(filepath.Join("..", "..", "hack", "tool.sh"), "chromium"))
	checktest.Must(s, err)
	if data == nil {
		data = map[string]any{}
	}
	data["url"] = s.url()
	cmd := exec.CommandContext(s.Context(), node, script)
	browser = strings.TrimSpace(browser)
	cmd.Env = append(os.Environ(), "HOME="+s.TempDir(), "PAGE_MODULES="+modules, "PAGE_BROWSER="+browser)
	in, err := cmd.StdinPipe()
	checktest.Must(s, err)
	out, err := cmd.StdoutPipe()
	checktest.Must(s, err)
	p := rig.Start(s, cmd)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var question struct {
			Name   string
			Figure float64 // of a benchmark
		}
		s.decode(lines.Text(), &question)
		var answer any = true
		switch f := ask[question.Name]; {
		case question.Name == "data":
			answer = data
		case question.Name == "link":
			answer = s.newLink()
		case strings.HasPrefix(question.Name, "figure "):
			s.TB.(*testing.B).ReportMetric(question.Figure, strings.TrimPrefix(question.Name, "figure "))
		case f == nil:
			s.Fatalf("%s asks %q", script, question.Name)
		default:
			answer = f()
		}
		raw, err := json.Marshal(answer)
		checktest.Must(s, err)
		_, err = in.Write(append(raw, '\n'))
		checktest.Must(s, err)
	}
	if code := p.Wait(); code != 0 {
		s.Fatalf("%s: exit code %d\n%s\nserver:\n%s", script, code, p.Text(), s.server.Text())
	}
}
