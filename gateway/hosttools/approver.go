package hosttools

import "context"

type approverKey struct{} // holds the Approver of a run

// WithApprover returns a context for runs whose calls are approved by a.
func WithApprover(ctx context.Context, a Approver) context.Context {
	return context.WithValue(ctx, approverKey{}, a)
}

// ApproverFromContext returns who approves calls; nil for nobody.
func ApproverFromContext(ctx context.Context) Approver {
	a, _ := ctx.Value(approverKey{}).(Approver)
	return a
}

// ApproverFunc is a function that is an Approver.
type ApproverFunc func(ctx context.Context, r ApprovalRequest) (Decision, error)

// Approve calls f.
func (f ApproverFunc) Approve(ctx context.Context, r ApprovalRequest) (Decision, error) {
	return f(ctx, r)
}
