package workflow

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/workcell-dev/workcell/internal/expr"
)

// maxFailures is how many failures of branches or items an Error lists.
const maxFailures = 100

// run runs the branches side by side.
func (b *parallelBody) run(ctx context.Context, ex *execution) (result, error) {
	outs, errs := ex.fanOut(ctx, len(b.branches), b.maxConcurrency, b.wait, func(ctx context.Context, i int) (any, error) {
		br := b.branches[i]
		place := fmt.Sprintf("%s.%s", ex.place(), br.id)
		name, isolated := ex.sessionOf(br.sandbox, br.isolated || ex.isolated && br.sandbox == "", place)
		if isolated {
			defer ex.closeIsolated(ctx, name)
		}
		return ex.inner(ctx, inner{steps: br.steps, output: br.output}, place, name, nil)
	})
	output := make(map[string]any, len(b.branches))
	for i, br := range b.branches {
		if errs[i] == nil {
			output[br.id] = outs[i]
		}
	}
	err := fanError(errs, "branch", func(i int, f *Failure) { f.Branch = b.branches[i].id })
	return result{output: output, has: true, last: true}, err
}

// run runs the steps once for each item.
func (b *forEachBody) run(ctx context.Context, ex *execution) (result, error) {
	v, err := b.items.Eval(ctx, ex.scope.variables())
	if err != nil {
		return result{}, exprError(b.items, err)
	}
	items, ok := v.([]any)
	if !ok {
		return result{}, &Error{Code: codeExpression, Where: b.items.where("", 2), Message: "items must be a list, it was " + expr.Describe(v)}
	}
	if err := ex.affords(len(items)); err != nil {
		return result{}, err
	}
	outs, errs := ex.fanOut(ctx, len(items), b.maxConcurrency, b.wait, func(ctx context.Context, i int) (any, error) {
		place := fmt.Sprintf("%s[%d]", ex.place(), i)
		name, isolated := ex.sessionOf("", ex.isolated, place)
		if isolated {
			defer ex.closeIsolated(ctx, name)
		}
		return ex.inner(ctx, inner{steps: b.steps, output: b.output}, place, name, map[string]any{b.as: items[i], b.indexAs: int64(i)})
	})
	err = fanError(errs, "item", func(i int, f *Failure) { f.Index = i })
	return result{output: outs, has: true, last: true}, err
}

// affords refuses a number of items that cannot be worked through, before the first is touched.
func (ex *execution) affords(items int) error {
	if items > maxItems {
		return &Error{Code: codeLimit, Message: fmt.Sprintf("%d items, at most %d are allowed", items, maxItems), Err: ErrLimit}
	}
	if left := ex.run.wf.MaxSteps - int(ex.run.steps.Load()); items > left {
		return &Error{
			Code: codeMaxSteps, Err: ErrLimit, final: true,
			Message: fmt.Sprintf("%d items take at least as many steps, and %d are left of max_steps %d", items, max(left, 0), ex.run.wf.MaxSteps),
		}
	}
	return nil
}

// place is the step's path, with the number of the visit when it is not the first.
func (ex *execution) place() string {
	if ex.visit > 1 {
		return fmt.Sprintf("%s#%d", ex.path, ex.visit)
	}
	return ex.path
}

// sessionOf returns the name of the sandbox that a branch or item works in, and whether it is isolated.
func (ex *execution) sessionOf(name string, isolated bool, place string) (string, bool) {
	switch {
	case isolated:
		return isolatedName(ex.id, place, ex.visit), true
	case name != "":
		return name, false
	}
	return ex.session, false
}

// inner runs the steps of a branch or item and returns its output.
func (ex *execution) inner(ctx context.Context, in inner, place, session string, extra map[string]any) (any, error) {
	sc := ex.scope.child(in.steps, place+"/", session, extra)
	defer sc.leave()
	if err := ex.run.sequence(ctx, sc, in.steps); err != nil {
		return nil, err
	}
	if in.output == nil {
		return sc.last, nil
	}
	out, err := in.output.Eval(ctx, sc.variables())
	if err != nil {
		return nil, exprError(in.output, err)
	}
	return out, nil
}

// fanOut calls work for 0 to n-1, at most limit at once, and waits for all. When one fails the others are cancelled and
// no more are begun, unless wait is set; those are no failures of their own.
func (ex *execution) fanOut(ctx context.Context, n, limit int, wait bool, work func(context.Context, int) (any, error)) ([]any, []*Error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	outs, errs := make([]any, n), make([]*Error, n)
	var next atomic.Int64
	var group sync.WaitGroup
	one := func(i int) {
		defer func() {
			if p := recover(); p != nil {
				ex.run.logPanic(ex.path, p)
				errs[i] = panicError(p)
			}
			if errs[i] != nil && (!wait || errs[i].final) {
				cancel(errSibling)
			}
		}()
		out, err := work(ctx, i)
		if err != nil {
			errs[i] = asError(err, codeInternal)
			return
		}
		outs[i] = out
	}
	for range min(limit, n) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if stop := ex.run.stopped(ctx); stop != nil {
					errs[i] = stop
					continue
				}
				one(i)
			}
		})
	}
	group.Wait()
	return outs, errs
}

// fanError makes one error of many. What ends the whole run comes through as it is.
func fanError(errs []*Error, what string, name func(int, *Failure)) error {
	var failed []Failure
	count := 0
	var stop *Error
	for i, e := range errs {
		if e == nil {
			continue
		}
		if e.final {
			if stop == nil || e.Code != CodeCancelled && stop.Code == CodeCancelled {
				stop = e
			}
			continue
		}
		count++
		if len(failed) < maxFailures {
			f := Failure{Step: e.Step, Code: e.Code, Message: e.Message}
			name(i, &f)
			failed = append(failed, f)
		}
	}
	if stop != nil && (count == 0 || stop.Code != CodeCancelled) {
		return stop
	}
	if count == 0 {
		return nil
	}
	first := failed[0]
	label := first.Branch
	if what == "item" {
		label = fmt.Sprint(first.Index)
	}
	msg := fmt.Sprintf("%s %s failed: %s", what, label, first.Message)
	if count > 1 {
		msg = fmt.Sprintf("%d of %d failed, first %s %s: %s", count, len(errs), what, label, first.Message)
	}
	return &Error{Code: codeBranches, Message: msg, Failed: failed}
}
