package hosttools

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// execTimeout is the timeout of commands whose calls wait longer for an approval. deadHost is the maximum extension of
// a command after the death of the host.
const (
	execTimeout = 12 * time.Second
	deadHost    = 15 * time.Second
)

// refunds returns rules that require approval for refunds.
func refunds() hosttools.Rules {
	granted := allow("orders.lookup")
	granted.Allow = append(granted.Allow, rules.Tool{Tool: "orders.refund", Ask: "true"})
	return granted
}

// TestLongApproval: a command can wait for an approval for several times its timeout, with several extensions, and
// still has its own time afterwards.
func TestLongApproval(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		approver := hosttools.ApproverFunc(func(ctx context.Context, r hosttools.ApprovalRequest) (hosttools.Decision, error) {
			wait := 3 * execTimeout
			if string(r.Args) != `{"id":"long"}` {
				wait = time.Second
			}
			select {
			case <-time.After(wait):
				return hosttools.Decision{Allow: true}, nil
			case <-ctx.Done():
				return hosttools.Decision{}, ctx.Err()
			}
		})
		d := newDesk(t, m, refunds(), approver, orders(nil))
		res := d.python(sandbox.ExecRequest{Timeout: execTimeout}, `
from workcell import tools
print(tools.orders.refund(id="long"), tools.orders.lookup(id="1")["total"])`)
		if got := string(res.Stdout.Bytes()); got != "refunded 12.5\n" || res.Duration < 3*execTimeout {
			t.Errorf("printed %q after %v; %s %s", got, res.Duration, res.Status, res.Stderr.Bytes())
		}
		// The extension does not extend the rest of the command's time.
		res = d.python(sandbox.ExecRequest{Timeout: execTimeout}, `
from workcell import tools
import time
tools.orders.refund(id="short"); time.sleep(600)`)
		if most := execTimeout + deadHost + 30*time.Second; res.Status != sandbox.ExecTimedOut || res.Duration > most {
			t.Errorf("%s after %v, it may last %v", res.Status, res.Duration, most)
		}
	})
}

// Environment variables of the process killed while it waits for an approval.
const (
	waitingVariable  = "HOSTTOOLS_TEST_WAITS_ON" // engine
	instanceVariable = "HOSTTOOLS_TEST_INSTANCE"
	stateVariable    = "HOSTTOOLS_TEST_STATE"
)

// TestHostDiesDuringApproval: a command whose host died during an approval keeps only the granted extensions.
func TestHostDiesDuringApproval(t *testing.T) {
	t.Parallel()
	for _, engine := range enginetest.Names() {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			instance, dir := "hosttools-"+record.NewID(), t.TempDir()
			must(t, os.Chmod(dir, 0o700))
			id, lived := killedWhileWaiting(t, engine, instance, dir)
			b, err := enginetest.Open(engine, dir)
			must(t, err)
			t.Cleanup(func() { must(t, b.Close()) })
			m := enginetest.Manager(t, b, &session.Options{Instance: instance, Store: record.NewMemoryStore()})
			s, err := m.Connect(t.Context(), id)
			must(t, err)
			t.Cleanup(func() { must(t, m.Remove(context.Background(), id, true)) })
			execs, err := s.Commands(t.Context())
			must(t, err)
			if len(execs) != 1 {
				t.Fatalf("commands: %+v", execs)
			}
			res, err := s.Command(execs[0].ExecID).Wait(t.Context(), patience)
			must(t, err)
			if most := lived + deadHost + execTimeout; res.Status != sandbox.ExecTimedOut || res.Duration > most {
				t.Errorf("%s after %v, it may last %v", res.Status, res.Duration, most)
			}
		})
	}
}

// killedWhileWaiting kills a process with a pending approval. It returns the sandbox and the running time of the
// command.
func killedWhileWaiting(t *testing.T, engine, instance, dir string) (id string, lived time.Duration) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), waitingVariable+"="+engine, instanceVariable+"="+instance, stateVariable+"="+dir)
	var stderr buffertest.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // already killed
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatalf("it never had a sandbox: %s", stderr.String())
	}
	id = lines.Text()
	began := time.Now()
	if !lines.Scan() || lines.Text() != "asked" {
		t.Fatalf("it never asked: %q, %s", lines.Text(), stderr.String())
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	return id, time.Since(began)
}

// waitForApproval is the killed process. Its command requests an approval, which is never given.
func waitForApproval() int {
	err := func() error {
		ctx := context.Background()
		b, err := enginetest.Open(os.Getenv(waitingVariable), os.Getenv(stateVariable))
		if err != nil {
			return err
		}
		m, err := session.NewManager(b, &session.Options{Instance: os.Getenv(instanceVariable), Store: record.NewMemoryStore()})
		if err != nil {
			return err
		}
		s, _, err := m.Open(ctx, session.UserKey("desk"), session.Request{Image: pythonImage})
		if err != nil {
			return err
		}
		return waitIn(ctx, s)
	}()
	fmt.Fprintln(os.Stderr, "the process was not killed:", err)
	return 1
}

func waitIn(ctx context.Context, s *session.Session) error {
	registry, err := hosttools.New(nil, orders(nil))
	if err != nil {
		return err
	}
	set, err := registry.Set(ctx, hosttools.Grant{Rules: refunds(), Approver: hosttools.ApproverFunc(
		func(ctx context.Context, _ hosttools.ApprovalRequest) (hosttools.Decision, error) {
			time.Sleep(21 * time.Second) // the command got three extensions by then
			fmt.Println("asked")
			<-ctx.Done()
			return hosttools.Decision{}, ctx.Err()
		})})
	if err != nil {
		return err
	}
	at, err := hosttools.Attach(ctx, s.Sandbox)
	if err != nil {
		return err
	}
	req := sandbox.ExecRequest{Timeout: execTimeout, Argv: []string{"python3", "-c", strings.TrimSpace(`
from workcell import tools, ToolUnavailable
import time
try: tools.orders.refund(id="1")
except ToolUnavailable: time.sleep(600)`)}}
	at.Grant(ctx, set, &req)
	fmt.Println(s.ID())
	res, err := s.Exec(ctx, req)
	if err == nil {
		err = fmt.Errorf("%w: the command has ended: %+v %s", backend.ErrClosed, res.ExecStatus, res.Stderr.Bytes())
	}
	return err
}
