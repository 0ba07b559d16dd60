package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/environment"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/session"
)

// measureInstalled times opens to the end of a first command of sandboxes that find something installed, after the one for which it
// was, beside such that find nothing.
func (c *contest) measureInstalled(ctx context.Context) error {
	for _, who := range c.all {
		if w, ok := who.(*workcell); ok {
			if err := c.measureInstalledOn(ctx, w); err != nil {
				return fmt.Errorf("%s: %w", w.name(), err)
			}
		}
	}
	return nil
}

func (c *contest) measureInstalledOn(ctx context.Context, w *workcell) (err error) {
	gateway, err := egress.New(nil)
	if err != nil {
		return err
	}
	builder, err := environment.New(nil)
	if err != nil {
		return err
	}
	instance := "bench-" + session.NewID()
	m, err := session.NewManager(w.driver, &session.Options{Instance: instance, Egress: gateway, Environments: builder})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close(context.Background()), removeEnvironments(w.driver, instance)) }()
	plain, installed := *w, *w
	plain.manager, installed.manager = m, m
	// What is installed makes no difference to an open, only that something is.
	installed.request.Environment = session.Environment{Setup: []string{"echo installed > /opt/workcell/file"}}
	if _, err := openTime(ctx, &installed, nil, false); err != nil {
		return err
	}
	samples := map[*workcell]sample{}
	for range max(40*c.opts.scale/100, 5) {
		for _, who := range []*workcell{&plain, &installed} {
			took, err := openTime(ctx, who, nil, false)
			if err != nil {
				return err
			}
			samples[who] = append(samples[who], took)
		}
	}
	c.figures["open_plain_p50_ms."+w.name()] = millis(samples[&plain].quantile(.5))
	c.figures["open_installed_p50_ms."+w.name()] = millis(samples[&installed].quantile(.5))
	return nil
}

// removeEnvironments removes what was installed for an instance.
func removeEnvironments(b backend.SandboxBackend, instance string) error {
	list, err := b.Environments(context.Background(), instance)
	for _, e := range list {
		err = errors.Join(err, b.RemoveEnvironment(context.Background(), instance, e.Name))
	}
	return err
}
