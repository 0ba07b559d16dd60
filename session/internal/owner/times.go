package owner

import "time"

// Times are how long what is left of a sandbox stays, and how long processes wait for each other.
type Times struct {
	// CreationGrace keeps what was made just now, and has no record yet, from being looked at.
	CreationGrace time.Duration
	// Unrecorded is how long a run's sandbox without a record is kept for somebody to look after it. Only a store that was
	// lost explains such a sandbox, so nobody knows what it is worth.
	Unrecorded time.Duration
	// Orphaned is how long an agent's sandbox stays unused when the agent's process is gone: nobody can resume that.
	Orphaned time.Duration
	// Workspace is how long a workspace is kept whose sandbox was removed without it.
	Workspace time.Duration
	// Missed is how long it is remembered that a run had a sandbox which was lost, or expired when the run was
	// interrupted: who resumes the run must hear of it.
	Missed time.Duration
	// Silent is how long, after its time, a sandbox is kept that is there and does not report whether it is used: it may
	// be at work while its engine or its guest hangs.
	Silent time.Duration
	// Remembered is how long the id of a closed sandbox, or the end of a run, is remembered.
	Remembered time.Duration

	// OrphanMargin is how much longer a guest that is alone waits before it ends than the managers and sweeps that should
	// come.
	OrphanMargin time.Duration
	// Ended is the least age of an ended sandbox that another instance removes: its manager may be about to find out why
	// it was lost.
	Ended time.Duration

	// Removal bounds one removal; engines wait for a container's processes. Transition is how long to wait for a process
	// that is about to let go of a sandbox, Handover for one that has a named one.
	Removal, Transition, Handover time.Duration
	// SweepGrace is how much longer than its manager a sweep may go on, a removal under way included: commands that are
	// over at once sweep, too, and nobody should have to wait for them.
	SweepGrace time.Duration
}

// Lifetimes returns the times that hold.
func Lifetimes() Times {
	const day = 24 * time.Hour
	return Times{
		CreationGrace: 2 * time.Minute,
		Unrecorded:    day,
		Orphaned:      2 * time.Minute,
		Workspace:     30 * day,
		Missed:        30 * day,
		Silent:        day,
		Remembered:    time.Hour,
		OrphanMargin:  2 * time.Minute,
		Ended:         time.Hour,
		Removal:       time.Minute,
		Transition:    time.Minute,
		Handover:      5 * time.Second,
		SweepGrace:    3 * time.Second,
	}
}
