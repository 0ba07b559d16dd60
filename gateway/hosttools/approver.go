package hosttools

import "context"

type approverKey struct{} // holds the Approver of a run

// WithApprover returns a context for runs whose calls are approved by a.
func WithApprover(ctx context.Context, a Approver) context.Context {
	return context.WithValue(ctx, approverKey{}, a)
}

// ApproverFromContext returns the approver of ctx, or nil if ctx has no approver.
func ApproverFromContext(ctx context.Context) Approver {
	a, _ := ctx.Value(approverKey{}).(Approver)
	return a
}

// ApproverFunc is a function that implements Approver.
type ApproverFunc func(ctx context.Context, r ApprovalRequest) (Decision, error)

// Approve calls f.
func (f ApproverFunc) Approve(ctx context.Context, r ApprovalRequest) (Decision, error) {
	return f(ctx, r)
}
