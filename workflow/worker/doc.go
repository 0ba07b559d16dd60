// Package worker carries out runs of workflows in other processes than those that begin them, on any machine that reaches
// the same PostgreSQL database, and goes on with those whose process died.
//
// A [Queue] is the runs that nobody has yet, and what they need: [Queue.Add] puts one in, [Queue.Work] takes them out. Which
// process should try a run next is what River (https://riverqueue.com) says, whose tables lie beside those of the journals. Which
// process has a run is what the journal says, as it does for all runs: a run has one owner, and that has a lease. A job of River is
// no more than the advice to look: whoever follows it finds that the run has ended, that somebody has it, or takes it.
package worker
