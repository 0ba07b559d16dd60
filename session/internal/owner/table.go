// Package owner defines the lifecycle of a sandbox as a table of rules. Each rule gives the next state and the engine's
// action after an event of the sandbox or the owner.
package owner

import "time"

// State is the lifecycle state of a sandbox, according to the record.
type State string

// States.
const (
	Creating      State = "creating"       // the engine may or may not have it yet
	Ready         State = "ready"          // it is running, or a start makes it available
	Suspended     State = "suspended"      // the processes have exited, the files are kept, and it has no owner
	WorkspaceOnly State = "workspace only" // only the workspace is kept
	Retained      State = "retained"       // kept for inspection after the end of the run
	Removing      State = "removing"       // the engine may still have parts of it
	Gone          State = "gone"           // only the id is remembered
)

// Event is an event in the lifecycle of a sandbox.
type Event string

// Events.
const (
	Created    Event = "created"     // the engine created it
	Used       Event = "used"        // a call, a command, or a connection used it
	Idle       Event = "idle"        // the idle timeout or retention period has passed
	OwnerDied  Event = "owner died"  // the owner process has died
	RunEnded   Event = "run ended"   // the run ended or was closed
	EngineLost Event = "engine lost" // it exited or was removed by another program
	Opened     Event = "opened"      // the key was opened
	Removed    Event = "removed"     // it was removed on request
)

// Action is the action of the engine.
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

// Kind is a bit set of key kinds. A rule may apply to several kinds.
type Kind uint8

// Kinds of keys.
const (
	Named   Kind = 1 << iota // a named sandbox, which all processes may open
	Run                      // a workflow run, which can be resumed
	Process                  // an agent or an MCP client, which cannot be resumed
	Foreign                  // an unknown namespace

	Anyone = Named | Run | Process | Foreign
)

// Condition is an additional condition of a rule.
type Condition string

// Conditions.
const (
	Always    Condition = ""
	Unowned   Condition = "that no process has"
	StopIdle  Condition = "idle policy stop"
	Retention Condition = "with a retention"
	Keep      Condition = "with its workspace kept"
	AfterAll  Condition = "after its process died" // the engine finished creating it after the process died
)

// Wait is the time at which a timed rule is due.
type Wait string

// Waits.
const (
	Never     Wait = ""                      // not a timed rule
	AtOnce    Wait = "at once"               // when it is created
	Orphaned  Wait = "unused for 2 minutes"  // OrphanedTime
	AtItsTime Wait = "when its time is over" // Facts.Expires
)

// OrphanedTime is how long an agent's sandbox stays unused after the agent's process has died. An agent cannot be
// resumed.
const OrphanedTime = 2 * time.Minute

// Use is an additional condition of a timed rule, checked by the guest.
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
	While Use // the rule applies only under this condition
}

// Table returns the rules. If several rules match, the first one applies.
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

// Facts are the facts about a sandbox for the rules.
type Facts struct {
	State     State
	Kind      Kind
	Owned     bool // a process owns it, or owned it and has died
	OnEngine  bool // the engine has it
	StopIdle  bool // the idle policy is stop
	Keep      bool // the workspace has to be kept
	Retention time.Duration
	Created   time.Time
	Used      time.Time // time of last use
	Expires   time.Time // expiry time; zero means never
}

// holds reports whether a rule matches the facts.
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

// at returns when a timed rule is due.
func (r Rule) at(f Facts) (at time.Time, ok bool) {
	switch r.When {
	case AtOnce:
		return f.Created, true
	case Orphaned:
		return f.Used.Add(OrphanedTime), true
	case AtItsTime:
		return f.Expires, !f.Expires.IsZero()
	}
	return at, false
}

// On returns the rule for an event. If no rule matches, it returns false.
func On(f Facts, e Event) (Rule, bool) {
	for _, r := range Table() {
		if r.On == e && r.holds(f) {
			return r, true
		}
	}
	return Rule{}, false
}

// Due returns the timed rule due now for a sandbox without a living owner. If no rule is due, it returns false.
func Due(f Facts, now time.Time) (Rule, bool) {
	for _, r := range Table() {
		if at, ok := r.at(f); ok && r.holds(f) && !now.Before(at) {
			return r, true
		}
	}
	return Rule{}, false
}

// Next returns when the next timed rule is due. If no timed rule matches, it returns false.
func Next(f Facts) (next time.Time, ok bool) {
	for _, r := range Table() {
		if at, timed := r.at(f); timed && r.holds(f) && (!ok || at.Before(next)) {
			next, ok = at, true
		}
	}
	return next, ok
}
