// Package owner is the life of a sandbox as one table: what becomes of it, and what its engine has to do for that, when
// something happens to it or to the process that has it.
package owner

import "time"

// State is where a sandbox is in its life, by its record.
type State string

// States.
const (
	Creating      State = "creating"       // the engine may or may not have it yet
	Ready         State = "ready"          // it runs, or can be reached by starting it
	Suspended     State = "suspended"      // its processes ended, its files are kept, and no process has it
	WorkspaceOnly State = "workspace only" // of its files only the workspace is kept
	Retained      State = "retained"       // its run is over, and it stays for somebody to look at
	Removing      State = "removing"       // the engine may still have something of it
	Gone          State = "gone"           // its id is remembered
)

// Event is what happens to a sandbox.
type Event string

// Events.
const (
	Created    Event = "created"     // the engine has made it
	Used       Event = "used"        // by a call, a command or a connection
	Idle       Event = "idle"        // for its idle time, or its time is over
	OwnerDied  Event = "owner died"  // the process that had it is gone
	RunEnded   Event = "run ended"   // by itself, or closed
	EngineLost Event = "engine lost" // it ended or was removed behind our back
	Opened     Event = "opened"      // its key was
	Removed    Event = "removed"     // by hand
)

// Action is what the engine is to do.
type Action string

// Actions.
const (
	Nothing       Action = ""
	Create        Action = "creates it"
	Start         Action = "starts it"
	Stop          Action = "stops it"
	Remove        Action = "removes all of it"
	KeepWorkspace Action = "removes all except its workspace"
)

// Kind is the kind of key that a sandbox has; a rule may be for several.
type Kind uint8

// Kinds of keys.
const (
	Named   Kind = 1 << iota // by a person, for everybody
	Run                      // a workflow's run, which can be resumed
	Process                  // an agent or an MCP client, which cannot
	Foreign                  // of a namespace that nothing is known of

	Anyone = Named | Run | Process | Foreign
)

// Condition is what else must be so for a rule.
type Condition string

// Conditions.
const (
	Always    Condition = ""
	Unowned   Condition = "that no process has"
	StopIdle  Condition = "idle policy stop"
	Retention Condition = "with a retention"
	Keep      Condition = "with its workspace kept"
	AfterAll  Condition = "after its process died" // the engine finished what that had begun
)

// Wait is when a rule that time brings about is due.
type Wait string

// Waits.
const (
	Never     Wait = ""                      // time does not bring it about
	AtOnce    Wait = "at once"               // from its creation on
	Orphaned  Wait = "unused for 2 minutes"  // Times.Orphaned
	AtItsTime Wait = "when its time is over" // Facts.Expires
)

// Use is what must be so for a rule that time brings about, which only the guest knows.
type Use string

// Uses.
const (
	NotBusy      Use = "no process runs in it"
	NotConnected Use = "no process is connected to it"
)

// Rule is one row of the table.
type Rule struct {
	From  State
	On    Event
	Kind  Kind
	If    Condition
	To    State
	Do    Action
	When  Wait
	While Use // and only then
}

// Table returns the rules. Of several that hold, the first does.
func Table() []Rule {
	return []Rule{
		{Creating, Created, Anyone, Always, Ready, Create, Never, ""},
		{Creating, OwnerDied, Anyone, Always, Gone, Remove, AtOnce, ""},
		{Creating, RunEnded, Anyone, Always, Gone, Remove, Never, ""},
		{Creating, Removed, Anyone, Always, Gone, Remove, Never, ""},

		{Ready, Used, Anyone, Always, Ready, Nothing, Never, ""},
		{Ready, Opened, Anyone, Always, Ready, Nothing, Never, ""},
		{Ready, OwnerDied, Process, Always, Gone, Remove, Orphaned, ""},
		{Ready, Idle, Named, StopIdle, Suspended, Stop, AtItsTime, NotBusy},
		{Ready, Idle, Anyone, Always, Gone, Remove, AtItsTime, NotBusy},
		{Ready, OwnerDied, Named | Run | Foreign, Always, Ready, Nothing, Never, ""},
		{Ready, RunEnded, Anyone, Retention, Retained, Nothing, Never, ""},
		{Ready, RunEnded, Anyone, Always, Gone, Remove, Never, ""},
		{Ready, EngineLost, Named, Unowned, WorkspaceOnly, Nothing, Never, ""},
		{Ready, EngineLost, Named, StopIdle, Suspended, Nothing, Never, ""},
		{Ready, EngineLost, Anyone, Keep, WorkspaceOnly, Nothing, Never, ""},
		{Ready, EngineLost, Anyone, Always, Removing, Nothing, Never, ""},
		{Ready, Removed, Anyone, Keep, WorkspaceOnly, KeepWorkspace, Never, ""},
		{Ready, Removed, Anyone, Always, Gone, Remove, Never, ""},

		{Suspended, Used, Named, Always, Ready, Start, Never, ""},
		{Suspended, Opened, Named, Always, Ready, Start, Never, ""},
		{Suspended, EngineLost, Named, Always, WorkspaceOnly, Nothing, Never, ""},
		{Suspended, Removed, Named, Keep, WorkspaceOnly, KeepWorkspace, Never, ""},
		{Suspended, Removed, Named, Always, Gone, Remove, Never, ""},

		{WorkspaceOnly, Opened, Anyone, Always, Ready, Create, Never, ""},
		{WorkspaceOnly, Idle, Anyone, Always, Gone, Remove, AtItsTime, NotBusy},
		{WorkspaceOnly, EngineLost, Anyone, Always, WorkspaceOnly, Nothing, Never, ""},
		{WorkspaceOnly, RunEnded, Anyone, Always, Gone, Remove, Never, ""},
		{WorkspaceOnly, Removed, Anyone, Keep, WorkspaceOnly, Nothing, Never, ""},
		{WorkspaceOnly, Removed, Anyone, Always, Gone, Remove, Never, ""},

		{Retained, Idle, Anyone, Always, Gone, Remove, AtItsTime, NotConnected},
		{Retained, Removed, Anyone, Always, Gone, Remove, Never, ""},

		{Removing, Idle, Anyone, Always, Gone, Remove, AtItsTime, ""},
		{Removing, Removed, Anyone, Always, Gone, Remove, Never, ""},

		{Gone, Created, Anyone, AfterAll, Gone, Remove, AtOnce, ""},
	}
}

// Facts are what the rules ask about a sandbox.
type Facts struct {
	State     State
	Kind      Kind
	Owned     bool // a process has it, or had when it died
	OnEngine  bool // the engine has it
	StopIdle  bool // its idle policy
	Keep      bool // its workspace is to be kept
	Retention time.Duration
	Created   time.Time
	Used      time.Time // last
	Expires   time.Time // when its time is over; zero is never
}

// holds reports whether a rule is about the facts.
func (r Rule) holds(f Facts) bool {
	if r.From != f.State || r.Kind&f.Kind == 0 || r.On == OwnerDied && !f.Owned {
		return false
	}
	switch r.If {
	case Unowned:
		return !f.Owned
	case StopIdle:
		return f.StopIdle
	case Retention:
		return f.Retention > 0
	case Keep:
		return f.Keep
	case AfterAll:
		return f.OnEngine
	}
	return true
}

// at returns when time brings a rule about.
func (r Rule) at(f Facts, t Times) (at time.Time, ok bool) {
	switch r.When {
	case AtOnce:
		return f.Created, true
	case Orphaned:
		return f.Used.Add(t.Orphaned), true
	case AtItsTime:
		return f.Expires, !f.Expires.IsZero()
	}
	return at, false
}

// On returns the rule for an event; false when nothing comes of that.
func On(f Facts, e Event) (Rule, bool) {
	for _, r := range Table() {
		if r.On == e && r.holds(f) {
			return r, true
		}
	}
	return Rule{}, false
}

// Due returns the rule that time has brought about by now for a sandbox that no living process has; false when it is
// none.
func Due(f Facts, t Times, now time.Time) (Rule, bool) {
	for _, r := range Table() {
		if at, ok := r.at(f, t); ok && r.holds(f) && !now.Before(at) {
			return r, true
		}
	}
	return Rule{}, false
}

// Next returns when time brings the next rule about; false when it never does.
func Next(f Facts, t Times) (next time.Time, ok bool) {
	for _, r := range Table() {
		if at, timed := r.at(f, t); timed && r.holds(f) && (!ok || at.Before(next)) {
			next, ok = at, true
		}
	}
	return next, ok
}
