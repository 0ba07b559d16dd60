package custody

import "time"

const day = 24 * time.Hour

// Lifetimes are the retention periods of sandboxes and the timeouts of processes during waits for each other. See also
// owner.OrphanedTime.
var Lifetimes = struct {
	CreationGrace, Unrecorded, Workspace, Missed, Silent, Remembered, OrphanMargin, Ended time.Duration
	Removal, Transition, Handover, SweepGrace                                             time.Duration
}{
	// CreationGrace is how long a new sandbox without a record is ignored, because the record may not be written yet.
	CreationGrace: 2 * time.Minute,
	// Unrecorded is how long a run's sandbox without a record is kept for inspection. Such a sandbox exists only if a
	// store was lost, so Workcell cannot know whether the files are still needed.
	Unrecorded: day,
	// Workspace is how long a workspace is kept after the sandbox was removed without it.
	Workspace: 30 * day,
	// Missed is how long the record of a run's lost sandbox is kept, to report the loss when the run is resumed. It
	// also applies to sandboxes that expired before the run was resumed.
	Missed: 30 * day,
	// Silent is how long an expired sandbox is kept if it does not report whether it is in use. It may be in use while
	// the engine or the guest hangs.
	Silent: day,
	// Remembered is how long the id of a closed sandbox, or the end of a run, is remembered.
	Remembered: time.Hour,
	// OrphanMargin is how much longer a disconnected guest waits before it exits than managers and sweeps need to connect
	// to it.
	OrphanMargin: 2 * time.Minute,
	// Ended is the minimum age of an exited sandbox before another instance removes it. The sandbox's manager may still be
	// finding out why it was lost.
	Ended: time.Hour,
	// Removal is the timeout of one removal; engines wait for a container's processes. Transition is how long to wait
	// for another process's release of a sandbox. Handover is how long to wait for the owner of a named sandbox.
	Removal:    time.Minute,
	Transition: time.Minute,
	Handover:   5 * time.Second,
	// SweepGrace is how long a sweep, including a running removal, may continue after the manager is closed. Short
	// commands also sweep, and users should not have to wait for them.
	SweepGrace: 3 * time.Second,
}
