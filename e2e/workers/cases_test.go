//go:build linux

package workers

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/workflow"
)

// long is a run whose second step waits until the test continues it or kills the waiting command.
const long = `id: long
sandbox: {runtime: bash}
outputs: [log]
steps:
  - {id: one, type: exec, command: "echo one >> log"}
  - {id: two, type: exec, command: "echo two >> log; if mkdir waited; then sleep 10000; fi"}
  - {id: three, type: exec, command: "echo three >> log; cat log"}
`

// pair returns two hosts with a shared database.
func pair(t *testing.T) (here, there *machine) {
	t.Helper()
	url := pgtest.Database(t)
	return newMachine(t, "here", url), newMachine(t, "there", url)
}

// inTwo waits until a run is in the second step.
func (m *machine) inTwo(t *testing.T, id string) {
	t.Helper()
	eventually(t, "the run is in its second step", func() bool { return strings.Contains(m.ok(t, "runs", "logs", id), "two ") })
}

// gone waits until a run has no sandbox.
func (m *machine) gone(t *testing.T, id string) {
	t.Helper()
	eventually(t, "the sandbox of the run is gone", func() bool { return !strings.Contains(m.ok(t, "sandbox", "ls"), id[:12]) })
}

// TestElsewhere: a run detached on one host is executed on another host, with all files, even after they are deleted on
// the first host. The log, the patch, and the outputs are available on the first host.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"flow.yaml": `id: flow
sandbox: {runtime: bash}
outputs: [made]
steps:
  - {id: work, type: agent, agent: worker, input: {name: "${ input.name }"}}
  - {id: copy, type: exec, command: "cat given > made; echo more >> given"}
input: {type: object, properties: {name: {type: string}}}
`,
		"agents/worker.prompt":   "---\nsandbox: {mode: code}\ninput: {schema: {name: string}}\n---\n{{>manners}} Work for {{name}}.\n",
		"agents/_manners.prompt": "Be kind.\n",
		"script.yaml":            "agents:\n  worker: [[{tool: sandbox_exec, input: {command: \"cat given\"}}, {expect: 'last.exit_code == 0 && prompt.contains(\"Be kind.\") && prompt.contains(\"Eve\")', text: done}]]\n",
		"project/given":          "of the project\n",
	} {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	id := here.ok(t, "run", "--detach", filepath.Join(dir, "flow.yaml"), "--model", "scripted/"+filepath.Join(dir, "script.yaml"),
		"--workspace", filepath.Join(dir, "project"), "--input", "name=Eve")
	if r := here.show(t, id); r.State != "queued" {
		t.Errorf("without a worker the run is %s", r.State)
	}
	for _, name := range []string{"flow.yaml", "script.yaml", "agents"} {
		must(t, os.RemoveAll(filepath.Join(dir, name)))
	}
	there.worker(t)
	log := here.ok(t, "runs", "logs", id, "--follow")
	for _, want := range []string{"run " + id + " started:", "work agent worker", "worker: sandbox_exec ok", "copy ok", "succeeded"} {
		if !strings.Contains(strings.Join(strings.Fields(log), " "), want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
	if got := here.ok(t, "runs", "get", id, "made", "-"); got != "of the project" {
		t.Errorf("the output is %q", got)
	}
	if got := here.ok(t, "runs", "diff", id); !strings.Contains(got, "+more") {
		t.Errorf("the patch is %q", got)
	}
	if res := here.Run(t, "runs", "apply", id); res.Code != 2 || !strings.Contains(res.Stderr, "workcell runs apply "+id+" DIR") {
		t.Errorf("applied to where the database says: exit code %d\n%s", res.Code, res.Stderr)
	}
	here.ok(t, "runs", "apply", id, filepath.Join(dir, "project"))
	if got, err := os.ReadFile(filepath.Join(dir, "project", "given")); string(got) != "of the project\nmore\n" {
		t.Errorf("applied: %q, %v", got, err)
	}
	here.ok(t, "runs", "rm", id)
	if res := here.Run(t, "runs", "logs", id); res.Code != 6 {
		t.Errorf("the log of a run that was removed: exit code %d\n%s", res.Code, res.Stdout)
	}
}

// TestFailedRun: following the log of a failed run exits with the run's exit code.
func TestFailedRun(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	there.worker(t)
	id := here.ok(t, "run", "--detach", file(t, "fails.yaml", "id: fails\nsandbox: {runtime: bash}\nsteps: [{id: bad, type: exec, command: 'echo why >&2; exit 3'}]\n"))
	res := here.Run(t, "runs", "logs", id, "--follow")
	if res.Code != 1 || !strings.Contains(res.Stdout, "| why") || !strings.Contains(res.Stderr, "failed") {
		t.Errorf("exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
}

// TestGracefulEnd: a stopped worker hands over the runs immediately, with their sandboxes. With
// --grace, the runs get time to end.
func TestGracefulEnd(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	w := here.worker(t)
	id := here.ok(t, "run", "--detach", file(t, "long.yaml", long))
	here.inTwo(t, id)
	must(t, w.Cmd.Process.Signal(syscall.SIGTERM))
	if code := w.Wait(); code != 0 {
		t.Errorf("the worker ends with %d\n%s", code, w.Text())
	}
	if r := there.show(t, id); r.State != "interrupted" {
		t.Errorf("the run is %s", r.State)
	}
	w = there.worker(t, "--grace", "4m")
	there.ok(t, "runs", "logs", id, "--follow")
	if !checkRun(t, there, id) {
		t.Error("the run did not continue in another worker")
	}
	id = here.ok(t, "run", "--detach", file(t, "nap.yaml", strings.ReplaceAll(steps, "sleep 3", "sleep 5")))
	here.inTwo(t, id)
	must(t, w.Cmd.Process.Signal(syscall.SIGTERM))
	if code := w.Wait(); code != 0 {
		t.Errorf("the worker with time for its runs ends with %d\n%s", code, w.Text())
	}
	if checkRun(t, here, id) {
		t.Error("the run was interrupted though it had the time to end")
	}
}

// TestCancelled: a run can be canceled from another host while it is queued, while a worker runs it, and after the
// worker was killed.
func TestCancelled(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	path := file(t, "long.yaml", long)
	queued := here.ok(t, "run", "--detach", path)
	there.ok(t, "runs", "cancel", queued)
	w := there.worker(t)
	running := here.ok(t, "run", "--detach", path)
	here.inTwo(t, running)
	here.ok(t, "runs", "cancel", running)
	killed := here.ok(t, "run", "--detach", path)
	here.inTwo(t, killed)
	w.Kill()
	eventually(t, "the worker is known to be dead", func() bool { return here.show(t, killed).State == "interrupted" })
	here.ok(t, "runs", "cancel", killed)
	there.worker(t)
	for what, id := range map[string]string{"queued": queued, "running": running, "killed": killed} {
		if r := there.show(t, id); r.State != "cancelled" {
			t.Errorf("the run that was cancelled while %s is %s", what, r.State)
		}
		here.gone(t, id)
		if res := here.Run(t, "runs", "logs", id, "--follow"); res.Code != 1 || !strings.Contains(res.Stderr, "cancelled") {
			t.Errorf("its log: exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
		}
	}
	if r := here.show(t, queued); len(r.Entries) != 2 { // start and end
		t.Errorf("the run that was cancelled in the queue did something: %v", r.Entries)
	}
}

// TestCancelledElsewhere verifies a run whose sandbox is on an engine accessible only to another host, and whose worker
// was killed. Canceling the run on the first host reports what is missing, and the next worker on the other host
// cancels it.
func TestCancelledElsewhere(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	// The machine id distinguishes hosts.
	id := file(t, "machine-id", "0123456789abcdef0123456789abcdef\n")
	here.Prefix = []string{"unshare", "--mount", "sh", "-c", "mount --bind " + id + ` /etc/machine-id && exec "$@"`, "sh"}
	w := there.worker(t)
	run := here.ok(t, "run", "--detach", file(t, "long.yaml", long))
	here.inTwo(t, run)
	w.Kill()
	eventually(t, "the worker is known to be dead", func() bool { return here.show(t, run).State == "interrupted" })
	res := here.Run(t, "runs", "cancel", run, "--wait", "1s")
	if res.Code != 1 || !strings.Contains(res.Stderr, "no worker stopped run") || !strings.Contains(res.Stderr, "on the host of that engine") {
		t.Errorf("without a worker: exit code %d\n%s", res.Code, res.Stderr)
	}
	if ls := there.ok(t, "sandbox", "ls"); !strings.Contains(ls, run[:12]) {
		t.Errorf("it has removed what it cannot reach:\n%s", ls)
	}
	cancel := here.Start(t, "runs", "cancel", run)
	there.worker(t)
	if code := cancel.Wait(); code != 0 {
		t.Errorf("with a worker there: exit code %d\n%s", code, cancel.Text())
	}
	if r := here.show(t, run); r.State != "cancelled" {
		t.Errorf("the run is %s", r.State)
	}
	there.gone(t, run)
}

// TestFilesGone: a run fails with an appropriate error if the sandbox was removed while no process had the run.
func TestFilesGone(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	w := there.worker(t)
	id := here.ok(t, "run", "--detach", file(t, "long.yaml", long))
	here.inTwo(t, id)
	w.Kill()
	eventually(t, "the worker is known to be dead", func() bool { return here.show(t, id).State == "interrupted" })
	here.ok(t, "sandbox", "rm", "--all")
	there.worker(t)
	res := here.Run(t, "runs", "logs", id, "--follow")
	if res.Code != 1 || !strings.Contains(res.Stderr, "are gone") {
		t.Errorf("exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	if r := here.show(t, id); r.State != string(workflow.Failed) {
		t.Errorf("the run is %s", r.State)
	}
}

// TestOutOfTheQueue: a failed run with checkpoints is tried only once, and a user can restart it from an earlier step.
func TestOutOfTheQueue(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	there.worker(t)
	id := here.ok(t, "run", "--detach", file(t, "kept.yaml", `id: kept
checkpoints: true
sandbox: {runtime: bash}
steps:
  - {id: one, type: exec, command: "echo one >> log"}
  - {id: two, type: exec, command: "echo two >> log; test -e fixed"}
`))
	for _, flags := range [][]string{nil, {"-o", "json"}} {
		res := here.Run(t, append([]string{"runs", "logs", id, "--follow"}, flags...)...)
		left := flags != nil || strings.Contains(res.Stdout, "removed from the queue")
		if res.Code != 1 || !left || !strings.Contains(res.Stderr, "interrupted") {
			t.Errorf("exit code %d\n%s%s", res.Code, res.Stdout, res.Stderr)
		}
	}
	if shown := here.ok(t, "runs", "show", id); !strings.Contains(shown, "--from two") {
		t.Errorf("no command to return to the step:\n%s", shown)
	}
	tampered(t, here, id, "host_tools", `"/none"`) // must not affect this host
	if res := here.Run(t, "runs", "resume", id, "--from", "two"); res.Code != 1 {
		t.Errorf("exit code %d\n%s", res.Code, res.Stderr)
	}
	here.ok(t, "runs", "cancel", id)
	here.gone(t, id)
}

// noteOf returns an SQL statement to set the note of a run to an expression and return the note.
func noteOf(id, to string) string {
	return fmt.Sprintf(`UPDATE workcell.run SET note = %s WHERE id = '%s' RETURNING note`, to, id)
}

// tampered sets a JSON value in the note of a run.
func tampered(t *testing.T, m *machine, id, key, value string) {
	t.Helper()
	query(t, m.url, noteOf(id, fmt.Sprintf(`jsonb_set(note::jsonb, '{%s}', '%s')::text`, key, value)))
}

// TestHandedToWorkers: an attached run with a killed process can be added to the queue. A worker continues it with the
// original workspace.
func TestHandedToWorkers(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	project := filepath.Dir(file(t, "given", "given\n"))
	p := here.Start(t, "run", file(t, "long.yaml", long), "--workspace", project)
	eventually(t, "the run is in its second step", func() bool { return strings.Contains(p.Text(), "two ") })
	var list []shown
	here.Read(t, &list, "runs", "ls")
	id := list[0].ID
	if res := here.Run(t, "runs", "resume", id, "--detach"); res.Code != 7 {
		t.Errorf("of a living process: exit code %d\n%s", res.Code, res.Stderr)
	}
	p.Kill()
	must(t, os.WriteFile(filepath.Join(project, "given"), []byte("changed meanwhile\n"), 0o600))
	eventually(t, "the process is known to be dead", func() bool { return here.show(t, id).State == "interrupted" })
	// Only the starting host can resume the run, and only with the original settings.
	note := query(t, here.url, noteOf(id, "note"))
	if res := there.Run(t, "runs", "resume", id); res.Code != 1 || !strings.Contains(res.Stderr, "was not started with this state") {
		t.Errorf("on another machine: exit code %d\n%s", res.Code, res.Stderr)
	}
	for key, value := range map[string]string{
		"host_tools": `"/x"`, "out": `"/x"`, "workspace": `"/x"`, "workflow": `"/x"`, "backend": `"/x"`, "detached": "true",
	} {
		tampered(t, here, id, key, value)
		for _, args := range [][]string{{"runs", "resume", id}, {"runs", "resume", id, "--detach"}} {
			if res := here.Run(t, args...); res.Code != 1 || !strings.Contains(res.Stderr, "have changed in the database: "+key+"\n") {
				t.Errorf("%s: exit code %d\n%s", key, res.Code, res.Stderr)
			}
		}
		query(t, here.url, noteOf(id, "$note$"+note+"$note$"))
	}
	there.worker(t)
	here.ok(t, "runs", "resume", id, "--detach")
	log := here.ok(t, "runs", "logs", id, "--follow")
	if !strings.Contains(log, "resumed: ") || !strings.Contains(log, "already completed") {
		t.Errorf("the worker says %s", log)
	}
	checkRun(t, here, id)
	if patch := here.ok(t, "runs", "diff", id); !strings.Contains(patch, "+three") || strings.Contains(patch, "given") {
		t.Errorf("the patch is %s", patch)
	}
}

// TestKilledBeforeItBegan: a run is not lost if a worker is killed while it takes the run.
func TestKilledBeforeItBegan(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	id := here.ok(t, "run", "--detach", file(t, "short.yaml", steps))
	conn, err := pgx.Connect(t.Context(), here.url)
	must(t, err)
	defer conn.Close(t.Context()) //nolint:errcheck // nothing is under way in it
	tx, err := conn.Begin(t.Context())
	must(t, err)
	// Prevents workers from taking it.
	_, err = tx.Exec(t.Context(), `SELECT FROM workcell.run WHERE id = $1 FOR UPDATE`, id)
	must(t, err)
	w := here.worker(t)
	eventually(t, "the worker waits to take the run", func() bool {
		return query(t, here.url, `SELECT (EXISTS (SELECT FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%taken%'))::text`) == "true"
	})
	w.Kill()
	must(t, tx.Rollback(t.Context())) // now the dead worker has the run, or no worker
	there.worker(t)
	there.ok(t, "runs", "logs", id, "--follow")
	checkRun(t, there, id)
}

// TestDatabaseRestarts: runs continue after the database server was killed and restarted, and runs detached afterwards
// are executed.
func TestDatabaseRestarts(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	goesOn(t, server.URL, func() {
		server.Kill()
		server.Start()
	})
}

// goesOn executes a run during which the database is unavailable, and another run afterwards.
func goesOn(t *testing.T, url string, away func()) {
	t.Helper()
	here, there := newMachine(t, "here", url), newMachine(t, "there", url)
	w := there.worker(t)
	id := here.ok(t, "run", "--detach", file(t, "nap.yaml", strings.ReplaceAll(steps, "sleep 3", "sleep 8")))
	here.inTwo(t, id)
	away()
	here.ok(t, "runs", "logs", id, "--follow")
	if checkRun(t, here, id) {
		t.Errorf("the run was interrupted:\n%s", w.Text())
	}
	id = here.ok(t, "run", "--detach", file(t, "short.yaml", steps))
	here.ok(t, "runs", "logs", id, "--follow")
	checkRun(t, here, id)
}

// outages returns the durations of database outages. They are longer than a lease, and longer than calls and
// interrupted runs wait.
func outages() []time.Duration {
	if os.Getenv(soakVariable) != "" {
		return []time.Duration{15 * time.Second, 45 * time.Second, 75 * time.Second, 120 * time.Second}
	}
	return []time.Duration{80 * time.Second}
}

// TestDatabaseAway: runs outlive an outage of the database, whether the server was stopped or did not answer. One or
// two workers resume all of them in their sandboxes.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	for way, away := range map[string]func(*pgtest.Server) (back func()){
		"stopped": func(s *pgtest.Server) func() { s.Kill(); return s.Start },
		"silent":  (*pgtest.Server).Pause,
	} {
		for _, outage := range outages() {
			for workers := 1; workers <= 2; workers++ {
				t.Run(fmt.Sprintf("%s %s %d", way, outage, workers), func(t *testing.T) {
					t.Parallel()
					server := pgtest.NewServer(t)
					here := newMachine(t, "here", server.URL)
					var log []*rig.Process
					for range workers {
						log = append(log, newMachine(t, "here", server.URL).worker(t))
					}
					path := file(t, "nap.yaml", strings.ReplaceAll(steps, "sleep 3", "sleep 8"))
					ids := make([]string, 3)
					for i := range ids {
						ids[i] = here.ok(t, "run", "--detach", path)
					}
					for _, id := range ids {
						here.inTwo(t, id)
					}
					back := away(server)
					time.Sleep(outage)
					back()
					began := time.Now()
					for _, id := range ids {
						eventually(t, "run "+id+" ends", func() bool { return here.show(t, id).State == string(workflow.Succeeded) })
						checkRun(t, here, id)
					}
					t.Logf("all had ended %v after the outage", time.Since(began).Round(time.Second))
					if t.Failed() {
						for _, w := range log {
							t.Log(w.Text())
						}
					}
				})
			}
		}
	}
}

// TestCannotHere: a worker unable to execute a run writes the reason to the log, and another worker executes the run.
func TestCannotHere(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	ask := filepath.Join(t.TempDir(), "ask.yaml")
	must(t, os.WriteFile(ask, []byte("id: ask\nsteps: [{id: ask, type: agent, agent: asker}]\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(filepath.Dir(ask), "asker.prompt"), []byte("---\nmodel: openai/gpt-4o\n---\nHello.\n"), 0o600))
	id := here.ok(t, "run", "--detach", ask)
	there.worker(t)
	eventually(t, "the log names the missing variable", func() bool {
		log := here.ok(t, "runs", "logs", id)
		return strings.Contains(log, "cannot run on") && strings.Contains(log, "OPENAI_API_KEY")
	})
	if r := here.show(t, id); r.State != "queued" {
		t.Errorf("the run is %s", r.State)
	}
	here.ok(t, "runs", "cancel", id)
	if r := here.show(t, id); r.State != string(workflow.Cancelled) {
		t.Errorf("the run is %s", r.State)
	}
}

// TestHostileDatabase: a writer of the database cannot access files on a worker's host, and cannot choose the backend
// or script.
func TestHostileDatabase(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	canary := filepath.Dir(file(t, "canary", "of the worker's machine\n"))
	look := file(t, "look.yaml", "id: look\nsandbox: {runtime: bash}\noutputs: [found]\nsteps: [{id: look, type: exec, command: 'ls > found'}]\n")
	note := func(key, value string) string {
		id := here.ok(t, "run", "--detach", look)
		tampered(t, here, id, key, strconv.Quote(value))
		return id
	}
	reads, escapes, parses := note("workspace", canary), note("backend", "docker"), note("model", "scripted/"+filepath.Join(canary, "canary"))
	there.worker(t)
	here.ok(t, "runs", "logs", reads, "--follow")
	if got := here.ok(t, "runs", "get", reads, "found", "-"); got != "found" {
		t.Errorf("the sandbox has %q", got)
	}
	refused := map[string]string{escapes: "requires backend docker, but this host uses local", parses: "do not include the script"}
	for id, want := range refused {
		eventually(t, "the log says "+want, func() bool { return strings.Contains(here.ok(t, "runs", "logs", id), want) })
		here.ok(t, "runs", "cancel", id)
	}
}

// TestTooLarge: files above the size limit are rejected before the run is created.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	here, _ := pair(t)
	dir := t.TempDir()
	noise, err := os.Open("/dev/urandom")
	must(t, err)
	defer noise.Close() //nolint:errcheck // only read from
	buf := make([]byte, 1<<20)
	f, err := os.Create(filepath.Join(dir, "large"))
	must(t, err)
	for range 65 {
		_, err = noise.Read(buf)
		must(t, err)
		_, err = f.Write(buf)
		must(t, err)
	}
	must(t, f.Close())
	res := here.Run(t, "run", "--detach", file(t, "short.yaml", steps), "--workspace", dir)
	if res.Code != 3 || !strings.Contains(res.Stderr, "64 MiB") {
		t.Errorf("exit code %d\n%s", res.Code, res.Stderr)
	}
	if got := here.ok(t, "runs", "ls", "-o", "json"); got != "[]" {
		t.Errorf("runs: %s", got)
	}
	if n := fmt.Sprint(strings.Count(res.Stderr, "\n")); n == "0" {
		t.Error("there is no hint")
	}
}
