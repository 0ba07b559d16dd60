package workflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/session"
)

// In a for_each with `fork: true`, each item starts with a copy of the sandbox's files in a separate sandbox. With
// `keep:`, the sandbox then gets the files of the first item for which `keep` is true.

// attempts are the items of a for_each with fork.
type attempts struct {
	ex      *execution
	origin  *session.Session
	place   string // digest of the attempt's place; suffix of the snapshots' names
	decided bool   // the winner was chosen before an interruption, so the items' sandboxes do not change

	names []string // names of the items' sandboxes
	keep  []bool   // whether the items' files may be kept
}

// newAttempts saves the state with which n items start.
func (ex *execution) newAttempts(ctx context.Context, n int) (*attempts, error) {
	origin, err := ex.open(ctx)
	if err != nil {
		return nil, err
	}
	a := &attempts{ex: ex, origin: origin, place: ex.digest(ex.attempts), names: make([]string, n), keep: make([]bool, n)}
	list, _, err := origin.Snapshots(ctx)
	if err != nil {
		return nil, err
	}
	has := func(name string) bool {
		return slices.ContainsFunc(list, func(s backend.Snapshot) bool { return s.Name == name })
	}
	if a.decided = has(rules.ForkKept + a.place); a.decided || has(rules.ForkBase+a.place) { // it was interrupted since
		return a, nil
	}
	return a, keepSnapshot(ctx, origin, rules.ForkBase+a.place)
}

// begin creates the sandbox of an item.
func (a *attempts) begin(ctx context.Context, i int, place, name string) error {
	a.names[i] = name
	r := a.ex.run
	exists, known := r.files(name)
	if a.decided || known && !exists && r.changed(place+"/", a.ex.location) { // a lost item cannot continue or be kept
		return nil
	}
	r.leftover.Store(name, place) // until the end is recorded, a resumed run needs the files
	if exists {
		_, err := r.continueIn(ctx, name, a.ex.location)
		return err
	}
	r.forgetFiles(name)
	_, _, err := a.origin.ForkAs(ctx, rules.ForkBase+a.place, r.scope().Key(name))
	return err
}

// keepWinner copies the files of the first item to keep into the original sandbox. If an item is kept, failures of
// other items do not count.
func (a *attempts) keepWinner(ctx context.Context, failed error) error {
	if final, ok := errors.AsType[*Error](failed); ok && final.Final {
		return failed
	}
	if first := slices.Index(a.keep, true); first >= 0 {
		if a.decided {
			return a.origin.Rollback(ctx, rules.ForkKept+a.place)
		}
		winner, err := a.ex.run.manager.Get(a.ex.run.scope().Key(a.names[first]))
		if err != nil {
			return fmt.Errorf("the files of item %d are lost: %w: %w", first, backend.ErrLost, err)
		}
		for _, s := range []*session.Session{winner, a.origin} { // an earlier process may have died here
			if err := makeRoom(ctx, s, rules.ForkKept+a.place); err != nil {
				return err
			}
		}
		return a.origin.AdoptFiles(ctx, winner, rules.ForkKept+a.place)
	}
	if failed != nil {
		return failed
	}
	return &Error{Code: codeNoMatch, Message: "keep was false for all items"}
}

// dropForks removes the snapshots of a for_each after the end was recorded. Only an interrupted for_each needs them.
func (ex *execution) dropForks(ctx context.Context) {
	b, ok := ex.body.(*fanBody)
	if !ok || !b.fork || ex.run.manager == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	origin, err := ex.run.manager.Get(ex.run.scope().Key(ex.session))
	if err != nil { // the sandbox does not exist or was lost
		return
	}
	for attempt := 1; attempt <= ex.attempts; attempt++ {
		for _, prefix := range []string{rules.ForkBase, rules.ForkKept} {
			if err == nil {
				err = origin.RemoveSnapshot(ctx, prefix+ex.digest(attempt))
			}
		}
	}
	if err != nil {
		ex.run.opts.Logger.Warn("cannot remove the snapshots of a for_each", "run", ex.run.result.RunID, "step", ex.path,
			"error", err)
	}
}

// digest returns a short digest of an attempt's place.
func (ex *execution) digest(attempt int) string {
	return digest([]byte(ex.attempted(ex.place(), attempt)), 8)
}

// attempted adds the attempt to a place, to avoid conflicts with earlier attempts. If the run uses another run's
// sandboxes, it also adds the run's id.
func (ex *execution) attempted(place string, attempt int) string {
	if attempt > 1 {
		place += fmt.Sprintf("~%d", attempt)
	}
	if ex.run.opts.Within != nil {
		place += "@" + ex.run.result.RunID
	}
	return place
}

// runForks implements runItems for a for_each with fork.
func (b *fanBody) runForks(ctx context.Context, ex *execution, items []any) (result, error) {
	a, err := ex.newAttempts(ctx, len(items))
	if err != nil {
		return result{}, fmt.Errorf("cannot fork the sandbox: %w", err)
	}
	outs, errs := ex.fanOut(ctx, len(items), b, func(ctx context.Context, i int) (any, error) {
		place := fmt.Sprintf("%s[%d]", ex.place(), i)
		name := sandboxRef{isolated: true}.in(ex.session, ex.id, ex.attempted(place, ex.attempts), ex.visit)
		if err := a.begin(ctx, i, place, name); err != nil {
			if stop := ex.run.stopped(ctx); stop != nil {
				return nil, stop // the error of the fork is only a consequence
			}
			return nil, cmp.Or(ex.interruptedBy(ctx, err), err)
		}
		out, keep, err := ex.inBranch(ctx, b.branches[0], place, name, b.itemVars(items, i))
		a.keep[i] = err == nil && keep
		return out, err
	})
	err = itemError(errs)
	if b.branches[0].keep != nil {
		err = a.keepWinner(ctx, err)
	}
	return result{output: outs, has: true, last: true}, err
}
