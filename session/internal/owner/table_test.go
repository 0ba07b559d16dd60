package owner_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session/internal/owner"
)

// TestTableInDocs verifies that the documentation contains the current table.
func TestTableInDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/concepts/lifecycle.md")
	checktest.Must(t, err)
	if !strings.Contains(string(text), markdown()) {
		t.Errorf("docs/concepts/lifecycle.md does not have\n%s", markdown())
	}
}

// markdown returns the table in the documentation's format.
func markdown() string {
	kinds := map[owner.Kind]string{
		owner.Anyone: "", owner.Named: "named", owner.Run: "a run's", owner.Process: "an agent's or MCP client's",
		owner.Named | owner.Run | owner.Foreign: "any other",
	}
	text := "| state | event | next state | the engine |\n|---|---|---|---|\n"
	for _, r := range owner.Table() {
		when := string(r.On)
		for _, part := range []string{kinds[r.Kind], string(r.If), string(r.When), string(r.While)} {
			if part != "" {
				when += ", " + part
			}
		}
		text += fmt.Sprintf("| %s | %s | %s | %s |\n", r.From, when, r.To, r.Do)
	}
	return text
}

// TestTableIsSound verifies three properties of the table. Every rule can apply. Every state has a removal rule, and
// every state in which the engine may have files also has a timed rule. The texts of waits contain the actual times.
func TestTableIsSound(t *testing.T) {
	t.Parallel()
	table := owner.Table()
	for i, r := range table {
		for _, before := range table[:i] {
			if before.From == r.From && before.On == r.On && before.Kind&r.Kind == r.Kind && (before.If == owner.Always || before.If == r.If) {
				t.Errorf("%+v is never reached, after %+v", r, before)
			}
		}
		if (r.Do == owner.Remove) != (r.To == owner.Gone) {
			t.Errorf("%+v: what is gone is removed, and nothing else", r)
		}
	}
	for _, state := range []owner.State{owner.Creating, owner.Ready, owner.Suspended, owner.WorkspaceOnly, owner.Retained, owner.Removing} {
		has := func(want func(owner.Rule) bool) bool {
			return slices.ContainsFunc(table, func(r owner.Rule) bool { return r.From == state && want(r) })
		}
		if !has(func(r owner.Rule) bool { return r.On == owner.Removed && r.To == owner.Gone }) {
			t.Errorf("what is %s cannot be removed", state)
		}
		if state != owner.Suspended && !has(func(r owner.Rule) bool { return r.When != owner.Never && r.To == owner.Gone }) {
			t.Errorf("a sandbox in state %s is never removed by a timed rule", state)
		}
	}
	if want := fmt.Sprintf("unused for %v minutes", owner.OrphanedTime.Minutes()); string(owner.Orphaned) != want {
		t.Errorf("%q, want %q", owner.Orphaned, want)
	}
}

// TestDue verifies which timed rules are due, and when, for a sandbox that no living process owns.
func TestDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	in := func(d time.Duration) time.Time { return now.Add(d) }
	for name, test := range map[string]struct {
		facts owner.Facts
		after time.Duration // when it is due; negative means never
		do    owner.Action
	}{
		"creating":                  {owner.Facts{State: owner.Creating, Owned: true, Created: now}, 0, owner.Remove},
		"named, never":              {owner.Facts{State: owner.Ready, Kind: owner.Named, Owned: true, Used: now}, -1, ""},
		"named":                     {owner.Facts{State: owner.Ready, Kind: owner.Named, Owned: true, Used: now, Expires: in(time.Hour)}, time.Hour, owner.Remove},
		"named, stop":               {owner.Facts{State: owner.Ready, Kind: owner.Named, StopIdle: true, Expires: in(time.Hour)}, time.Hour, owner.Stop},
		"an agent's":                {owner.Facts{State: owner.Ready, Kind: owner.Process, Owned: true, Used: now, Expires: in(time.Hour)}, 2 * time.Minute, owner.Remove},
		"an agent's, given up":      {owner.Facts{State: owner.Ready, Kind: owner.Process, Used: now, Expires: in(time.Hour)}, time.Hour, owner.Remove},
		"a run's":                   {owner.Facts{State: owner.Ready, Kind: owner.Run, Owned: true, Used: now, Expires: in(time.Hour)}, time.Hour, owner.Remove},
		"a run's, with a retention": {owner.Facts{State: owner.Ready, Kind: owner.Run, Owned: true, Used: now, Retention: 4 * time.Minute}, -1, ""},
		"a run's, given up":         {owner.Facts{State: owner.Ready, Kind: owner.Run, Used: now}, -1, ""},
		"suspended":                 {owner.Facts{State: owner.Suspended, Kind: owner.Named, StopIdle: true, Used: now}, -1, ""},
		"workspace only":            {owner.Facts{State: owner.WorkspaceOnly, Kind: owner.Named, StopIdle: true, Expires: in(time.Hour)}, time.Hour, owner.Remove},
		"retained":                  {owner.Facts{State: owner.Retained, Kind: owner.Run, Expires: in(time.Hour)}, time.Hour, owner.Remove},
		"removing":                  {owner.Facts{State: owner.Removing, Kind: owner.Run, Expires: now}, 0, owner.Remove},
		"gone":                      {owner.Facts{State: owner.Gone, Kind: owner.Run}, -1, ""},
		"gone, made after all":      {owner.Facts{State: owner.Gone, Kind: owner.Run, OnEngine: true, Created: now}, 0, owner.Remove},
	} {
		if test.facts.Kind == 0 {
			test.facts.Kind = owner.Foreign
		}
		at, ok := owner.Next(test.facts)
		if ok != (test.after >= 0) || ok && !at.Equal(in(test.after)) {
			t.Errorf("%s: next in %v, %v, want %v", name, at.Sub(now), ok, test.after)
		}
		if !ok {
			continue
		}
		if r, due := owner.Due(test.facts, at.Add(-1)); due {
			t.Errorf("%s: too soon: %+v", name, r)
		}
		if r, due := owner.Due(test.facts, at); !due || r.Do != test.do {
			t.Errorf("%s: %+v, %v, want %q", name, r, due, test.do)
		}
	}
}

// TestOn verifies the rules for events.
func TestOn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		facts owner.Facts
		event owner.Event
		to    owner.State
		do    owner.Action
	}{
		"a run ends":                         {owner.Facts{State: owner.Ready, Kind: owner.Run}, owner.RunEnded, owner.Gone, owner.Remove},
		"a run ends, with a retention":       {owner.Facts{State: owner.Ready, Kind: owner.Run, Retention: 1}, owner.RunEnded, owner.Retained, ""},
		"a run ends whose workspace is kept": {owner.Facts{State: owner.WorkspaceOnly, Kind: owner.Run, Retention: 1}, owner.RunEnded, owner.Gone, owner.Remove},
		"lost":                               {owner.Facts{State: owner.Ready, Kind: owner.Run, StopIdle: true}, owner.EngineLost, owner.Removing, ""},
		"lost, named, kept":                  {owner.Facts{State: owner.Ready, Kind: owner.Named, Keep: true, Owned: true}, owner.EngineLost, owner.WorkspaceOnly, ""},
		"lost, an agent's, kept":             {owner.Facts{State: owner.Ready, Kind: owner.Process, Keep: true}, owner.EngineLost, owner.WorkspaceOnly, ""},
		"lost, named, stop":                  {owner.Facts{State: owner.Ready, Kind: owner.Named, StopIdle: true, Owned: true}, owner.EngineLost, owner.Suspended, ""},
		"lost, named, unowned":               {owner.Facts{State: owner.Ready, Kind: owner.Named, StopIdle: true}, owner.EngineLost, owner.WorkspaceOnly, ""},
		"lost, suspended":                    {owner.Facts{State: owner.Suspended, Kind: owner.Named, StopIdle: true}, owner.EngineLost, owner.WorkspaceOnly, ""},
		"opened, suspended":                  {owner.Facts{State: owner.Suspended, Kind: owner.Named}, owner.Opened, owner.Ready, owner.Start},
		"opened, workspace only":             {owner.Facts{State: owner.WorkspaceOnly, Kind: owner.Named}, owner.Opened, owner.Ready, owner.Create},
		"removed, its workspace is kept":     {owner.Facts{State: owner.Ready, Kind: owner.Named, Keep: true}, owner.Removed, owner.WorkspaceOnly, owner.KeepWorkspace},
	} {
		if r, ok := owner.On(test.facts, test.event); !ok || r.To != test.to || r.Do != test.do {
			t.Errorf("%s: %+v, %v", name, r, ok)
		}
	}
	if r, ok := owner.On(owner.Facts{State: owner.Retained, Kind: owner.Run}, owner.Opened); ok {
		t.Errorf("what is retained was opened: %+v", r)
	}
}
