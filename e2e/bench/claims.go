package main

import (
	"bytes"
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	claimapi "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/e2e/clustertest"
	"github.com/workcell-dev/workcell/internal/engines"
	"github.com/workcell-dev/workcell/session"
)

// claimed is our driver on a cluster where it claims its sandboxes from a warm pool.
type claimed struct {
	*workcell
	api  *rest.Config
	opts *kubernetes.Options
}

// newClaimed makes a pool of the sandboxes that our driver among all opens.
func newClaimed(ctx context.Context, all []contestant) (*claimed, error) {
	var opts *kubernetes.Options
	var api *rest.Config
	var w *workcell
	for _, who := range all {
		switch who := who.(type) {
		case *clientGo:
			opts, api = clusterOptions(who), who.config
		case *workcell:
			w = who
		}
	}
	opts.Claims = "bench"
	var template claimapi.SandboxTemplate
	var pool claimapi.SandboxWarmPool
	text, err := warmPoolOf(ctx, w, opts.Claims)
	if err != nil {
		return nil, err
	}
	first, second, _ := bytes.Cut(text, []byte("---\n"))
	if err := errors.Join(yaml.Unmarshal(first, &template), yaml.Unmarshal(second, &pool)); err != nil {
		return nil, err
	}
	if _, err := clustertest.SandboxTemplates(api, opts.Namespace).Create(ctx, &template, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, err := clustertest.SandboxWarmPools(api, opts.Namespace).Create(ctx, &pool, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	driver, err := kubernetes.New(ctx, opts)
	if err != nil {
		return nil, err
	}
	inner := *w
	inner.driver = driver
	if inner.manager, err = session.NewManager(driver, &session.Options{IdleTimeout: -1}); err != nil {
		return nil, errors.Join(err, driver.Close())
	}
	return &claimed{&inner, api, opts}, nil
}

var errPlanned = errors.New("nothing is opened")

// warmPoolOf returns what the driver prints of a pool for the sandboxes that w opens.
func warmPoolOf(ctx context.Context, w *workcell, name string) (text []byte, err error) {
	m, err := session.NewManager(engines.Planned(w.driver, func(ctx context.Context, _ backend.SandboxBackend, spec backend.Spec) (err error) {
		if text, err = w.driver.(*kubernetes.Backend).WarmPool(ctx, name, spec, 2); err == nil {
			err = errPlanned
		}
		return err
	}), &session.Options{IdleTimeout: -1})
	if err != nil {
		return nil, err
	}
	_, _, err = m.Open(ctx, session.AgentKey(session.NewRunID(), session.DefaultName), w.request)
	if errors.Is(err, errPlanned) {
		err = nil
	}
	return text, errors.Join(err, m.Close(ctx))
}

// ready waits until the pool has been full for a second, in which the node ends what is gone for the API: pods without grace.
func (c *claimed) ready(ctx context.Context) error {
	for since := time.Now(); time.Since(since) < time.Second; time.Sleep(50 * time.Millisecond) {
		p, err := clustertest.SandboxWarmPools(c.api, c.opts.Namespace).Get(ctx, c.opts.Claims, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.ReadyReplicas != *p.Spec.Replicas {
			since = time.Now()
		}
	}
	return nil
}
