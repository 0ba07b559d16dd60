package workflow

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/workcell-dev/workcell/internal/expr"
)

// maxFailures is the maximum number of failed branches or items in an Error.
const maxFailures = 100

// run runs the branches concurrently, or the steps once for each item.
func (b *fanBody) run(ctx context.Context, ex *execution) (result, error) {
	if ex.typ == TypeForEach {
		return b.runItems(ctx, ex)
	}
	outs, errs := ex.fanOut(ctx, len(b.branches), b, func(ctx context.Context, i int) (any, error) {
		return ex.branch(ctx, b.branches[i], ex.place()+"."+b.branches[i].id, nil)
	})
	output := make(map[string]any, len(b.branches))
	for i, br := range b.branches {
		if errs[i] == nil {
			output[br.id] = outs[i]
		}
	}
	err := fanError(errs, "branch", func(i int, f *Failure) string { f.Branch = b.branches[i].id; return f.Branch })
	return result{output: output, has: true, last: true}, err
}

func (b *fanBody) runItems(ctx context.Context, ex *execution) (result, error) {
	v, err := b.items.Eval(ctx, ex.scope.variables())
	if err != nil {
		return result{}, err
	}
	items, ok := v.([]any)
	if !ok {
		where := ex.run.wf.where(b.items.Programs()[0].Place) // a literal in the file is always a list
		return result{}, &Error{Code: codeExpression, Where: where, Message: "items must be a list, not " + expr.Describe(v)}
	}
	if err := ex.checkItemBudget(len(items)); err != nil {
		return result{}, err
	}
	if b.fork {
		return b.runForks(ctx, ex, items)
	}
	outs, errs := ex.fanOut(ctx, len(items), b, func(ctx context.Context, i int) (any, error) {
		return ex.branch(ctx, b.branches[0], fmt.Sprintf("%s[%d]", ex.place(), i), b.itemVars(items, i))
	})
	return result{output: outs, has: true, last: true}, itemError(errs)
}

// itemVars returns the variables for an item in a for_each.
func (b *fanBody) itemVars(items []any, i int) map[string]any {
	return map[string]any{b.as: items[i], b.indexAs: int64(i)}
}

func itemError(errs []*Error) error {
	return fanError(errs, "item", func(i int, f *Failure) string { f.Index = i; return strconv.Itoa(i) })
}

// checkItemBudget returns an error before the first item starts if there are too many items. In a repeated attempt,
// items have already started and count against max_steps.
func (ex *execution) checkItemBudget(items int) error {
	if items > maxItems {
		return failf(codeLimit, nil, "%d items, at most %d are allowed", items, maxItems)
	}
	if left := ex.run.wf.MaxSteps - int(ex.run.steps.Load()); items > left && ex.losses == 0 {
		return finalf(codeMaxSteps, nil, "%d items need at least as many steps, but only %d of max_steps %d remain",
			items, max(left, 0), ex.run.wf.MaxSteps)
	}
	return nil
}

// place returns the step's path. For the second and later executions, it appends the number of the execution.
func (ex *execution) place() string {
	if ex.visit > 1 {
		return fmt.Sprintf("%s#%d", ex.path, ex.visit)
	}
	return ex.path
}

// branch runs the steps of a branch or item and returns the output. In an isolated step, each branch without a named
// sandbox has a separate sandbox.
func (ex *execution) branch(ctx context.Context, br branch, place string, extra map[string]any) (any, error) {
	ref := br.sandbox
	ref.isolated = ref.isolated || ref.name == "" && ex.sandbox.isolated
	name := ref.in(ex.session, ex.id, place, ex.visit)
	if ref.isolated {
		defer func() {
			if isCut(ctx) {
				ex.run.leftover.Store(name, place)
			} else {
				ex.closeIsolated(ctx, name)
			}
		}()
	}
	out, _, err := ex.inBranch(ctx, br, place, name, extra)
	return out, err
}

// inBranch runs a branch in the sandbox with the specified name. keep is the result of the branch's `keep`.
func (ex *execution) inBranch(ctx context.Context, br branch, place, name string,
	extra map[string]any) (out any, keep bool, err error) {
	sc := ex.scope.child(br.steps, place+"/", name, extra)
	defer sc.leave()
	if err := ex.run.sequence(ctx, sc, br.steps); err != nil {
		return nil, false, err
	}
	if br.keep != nil {
		if keep, err = br.keep.EvalBool(ctx, sc.variables()); err != nil {
			return nil, false, ex.run.wf.withPosition(err)
		}
	}
	if br.output == nil {
		return sc.last, keep, nil
	}
	out, err = br.output.Eval(ctx, sc.variables())
	return out, keep, ex.run.wf.withPosition(err)
}

// fanOut calls work for 0 to n-1 with the concurrency of b and waits for all calls. If one call fails, fanOut cancels
// the others and starts no more, unless b.wait is set. Canceled calls do not count as failures.
func (ex *execution) fanOut(ctx context.Context, n int, b *fanBody,
	work func(context.Context, int) (any, error)) ([]any, []*Error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	outs, errs := make([]any, n), make([]*Error, n)
	var next atomic.Int64
	var group sync.WaitGroup
	one := func(i int) (err error) {
		defer ex.run.recovered(ex.path, &err)
		out, err := work(ctx, i)
		if err == nil {
			outs[i] = out
		}
		return err
	}
	for range min(b.maxConcurrency, n) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if stop := ex.run.stopped(ctx); stop != nil {
					errs[i] = stop
					continue
				}
				if err := one(i); err != nil {
					errs[i] = asError(err, codeInternal)
					if !b.wait || errs[i].Final {
						cancel(errSibling)
					}
				}
			}
		})
	}
	group.Wait()
	return outs, errs
}

// fanError combines several errors. name describes the branch or item of a failure. An error ending the whole run is
// returned unchanged.
func fanError(errs []*Error, what string, name func(int, *Failure) string) error {
	var failed []Failure
	var first, limit string
	var stop *Error
	for i, e := range errs {
		switch {
		case e == nil:
		case !e.Final:
			f := Failure{Step: e.Step, Code: e.Code, Message: e.Message}
			label := name(i, &f) // also sets the branch or the index of f
			first, limit = cmp.Or(first, what+" "+label), cmp.Or(limit, e.Limit)
			failed = append(failed, f)
		case stop == nil || e.Code != CodeCancelled && stop.Code == CodeCancelled:
			stop = e
		}
	}
	count := len(failed)
	switch {
	case stop != nil && (count == 0 || stop.Code != CodeCancelled):
		return stop
	case count == 0:
		return nil
	}
	msg := first + " failed: " + failed[0].Message
	if count > 1 {
		msg = fmt.Sprintf("%d of %d failed, first %s: %s", count, len(errs), first, failed[0].Message)
	}
	return &Error{Code: codeBranches, Message: msg, Failed: failed[:min(count, maxFailures)], Limit: limit}
}
