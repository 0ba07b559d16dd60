package hosttools

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// desk is a sandbox whose commands call tools without an agent.
type desk struct {
	t        *testing.T
	s        *session.Session
	at       *hosttools.Attachment
	registry *hosttools.Registry
	set      *hosttools.Set
}

func newDesk(t *testing.T, m *session.Manager, rules hosttools.Rules, approver hosttools.Approver, sources ...hosttools.Source) *desk {
	t.Helper()
	return newDeskIn(t, m, session.Request{Image: pythonImage}, nil, rules, approver, sources...)
}

// newDeskIn is like newDesk, with a sandbox request and registry options.
func newDeskIn(t *testing.T, m *session.Manager, req session.Request, o *hosttools.Options, rules hosttools.Rules, approver hosttools.Approver, sources ...hosttools.Source) *desk {
	t.Helper()
	s, _, err := m.Open(t.Context(), session.UserKey("desk"), req)
	must(t, err)
	registry, set := freeze(t, o, rules, approver, sources...)
	at, err := hosttools.Attach(t.Context(), s.Sandbox)
	must(t, err)
	return &desk{t, s, at, registry, set}
}

// newSet returns the tools of sources allowed by the rules, until the end of the test.
func newSet(t *testing.T, rules hosttools.Rules, approver hosttools.Approver, sources ...hosttools.Source) *hosttools.Set {
	t.Helper()
	_, set := freeze(t, nil, rules, approver, sources...)
	return set
}

func freeze(t *testing.T, o *hosttools.Options, rules hosttools.Rules, approver hosttools.Approver, sources ...hosttools.Source) (*hosttools.Registry, *hosttools.Set) {
	t.Helper()
	registry, err := hosttools.New(o, sources...)
	must(t, err)
	set, err := registry.Set(t.Context(), hosttools.Grant{Rules: rules, Approver: approver})
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		must(t, set.Close(ctx))
		must(t, registry.Close())
	})
	return registry, set
}

func allow(tools ...string) (r hosttools.Rules) {
	for _, tool := range tools {
		r.Allow = append(r.Allow, rules.Tool{Tool: tool})
	}
	return r
}

// python runs a program with tools.
func (d *desk) python(req sandbox.ExecRequest, code string) sandbox.ExecResult {
	d.t.Helper()
	req.Argv = []string{"python3", "-c", code}
	d.at.Grant(d.t.Context(), d.set, &req)
	res, err := d.s.Exec(d.t.Context(), req)
	must(d.t, err)
	return res
}

func (d *desk) prints(want, code string) {
	d.t.Helper()
	if res := d.python(sandbox.ExecRequest{}, code); string(res.Stdout.Bytes()) != want {
		d.t.Errorf("printed %q, want %q; %s %s", res.Stdout.Bytes(), want, res.Status, res.Stderr.Bytes())
	}
}

// works verifies that calls get answers.
func (d *desk) works() {
	d.t.Helper()
	d.prints("12.5\n", `from workcell import tools; print(tools.orders.lookup(id="1")["total"])`)
}

// TestCommandEnds: the calls of a killed or timed-out command are canceled.
func TestCommandEnds(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		waits := newWaits()
		d := newDesk(t, m, allow("orders.*"), nil, orders(waits))
		const program = `from workcell import tools; tools.orders.wait()`
		called := func() bool {
			select {
			case <-waits.begun:
				return true
			default:
				return false
			}
		}
		t.Run("timed out", func(t *testing.T) {
			// On a busy host, the program may need more than a second until the first call.
			for timeout := time.Second; ; timeout *= 2 {
				res := d.python(sandbox.ExecRequest{Timeout: timeout}, program)
				if res.Status != sandbox.ExecTimedOut {
					t.Fatalf("%+v %s", res.ExecStatus, res.Stderr.Bytes())
				}
				if called() {
					break
				}
				if timeout > patience {
					t.Fatal("the program never called")
				}
			}
			if err := waits.end(); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		t.Run("killed", func(t *testing.T) {
			res := d.python(sandbox.ExecRequest{Yield: time.Millisecond}, program)
			if res.Done() {
				t.Fatalf("%+v %s", res.ExecStatus, res.Stderr.Bytes())
			}
			waits.begins(t)
			_, err := d.s.Command(res.ExecID).Signal(t.Context(), "")
			must(t, err)
			if err := waits.end(); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		d.works()
	})
}
