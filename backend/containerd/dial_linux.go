package containerd

import (
	"context"
	"io"

	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Dial opens the FIFOs of the guest's standard streams, taking them from their holder.
func (b *Backend) Dial(ctx context.Context, id string) (_ io.ReadWriteCloser, err error) {
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, span := b.calls.Span(ctx, telemetry.SpanContainerdDial)
	defer func() { telemetry.End(span, err) }()
	r, err := b.running(ctx, id)
	if err != nil {
		return nil, err
	}
	s, err := openStream(ctx, r.state(), r.id)
	if err != nil {
		return nil, b.settle(ctx, "dial", err)
	}
	return s, nil
}
