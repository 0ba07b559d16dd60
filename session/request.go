package session

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/record"
)

// prepare validates a request and applies policy and defaults. The result shares no memory with the caller's request.
func (m *Manager) prepare(req Request) (Request, error) {
	if req.DefaultImage {
		req.Image = cmp.Or(m.opts.Defaults.Images[req.Language], req.Image)
	}
	err := m.permit(&req)
	if err != nil {
		return req, err
	}
	if req.Root != backend.RootReadonly && req.Root != backend.RootWritable {
		return req, fmt.Errorf("%w: invalid root mode %d", backend.ErrInvalid, req.Root)
	}
	req.Network = cmp.Or(req.Network, backend.NetworkNone)
	err = cmp.Or(checkIsolation(req.Isolation), m.checkEgress(req), m.checkEnvironment(req))
	if err = cmp.Or(err, sandbox.ValidateEnv(req.Env)); err != nil {
		return req, err
	}
	req.Isolation = req.Isolation.Stricter(m.opts.Defaults.Isolation)
	req.Environment, req.Env = req.Environment.Clone(), maps.Clone(req.Env)
	if req.fork == nil { // a fork has the origin's mounts, which include the defaults
		req.Mounts = slices.Concat(m.opts.Defaults.Mounts, req.Mounts)
	}
	if req.Caches, err = m.checkCaches(req.Caches); err != nil {
		return req, err
	}
	req.OCIRuntime = cmp.Or(req.OCIRuntime, m.opts.Defaults.OCIRuntime)
	req.asked = req.Limits
	req.Limits = req.Limits.Merge(m.opts.Defaults.Limits).Clamp(req.Ceiling)
	if l := &req.Limits; l.MemoryBytes > 0 { // the operator's default sizes must fit into a small memory
		fit := l.Fit(req.asked)
		l.TmpBytes, l.ShmBytes = min(l.TmpBytes, fit.TmpBytes), min(l.ShmBytes, fit.ShmBytes)
	}
	for _, row := range backend.LimitTable() { // the driver refuses other invalid values
		if value := *row.Of(&req.Limits); value < 0 {
			return req, &backend.LimitError{Limit: row, Value: value}
		}
	}
	timeout := cmp.Or(m.opts.Defaults.ExecTimeout, sandbox.DefaultExecTimeout)
	if req.ExecTimeout, err = sandbox.ExecTimeout(req.ExecTimeout, timeout); err != nil {
		return req, err
	}
	if req.Retention < 0 {
		return req, fmt.Errorf("%w: retention %v is negative", backend.ErrInvalid, req.Retention)
	}
	req.IdleTimeout = cmp.Or(req.IdleTimeout, m.opts.IdleTimeout)
	return req, nil
}

// checkIsolation checks a minimum isolation.
func checkIsolation(i backend.Isolation) error {
	if i != "" && !slices.Contains(backend.Isolations(), i) {
		return fmt.Errorf("%w: unknown isolation %q, must be one of %q", backend.ErrInvalid, sanitize.Clip(string(i)),
			backend.Isolations())
	}
	return nil
}

// permit validates image and user and applies the policy.
func (m *Manager) permit(req *Request) error {
	// An invalid reference may be a URL with a password, which must not appear in spans.
	if _, err := backend.NormalizeImage(req.Image); err != nil {
		return err
	}
	if m.opts.Images != nil {
		if err := m.opts.Images.Check(req.Image); err != nil {
			return err
		}
	}
	user, err := record.ParseUser(req.User)
	if err != nil {
		return err
	}
	if !m.opts.AllowRoot && record.IsRoot(user) {
		return fmt.Errorf("%w: user %q: %w", backend.ErrPermission, sanitize.Message(req.User), errRoot)
	}
	req.User = user
	return nil
}

// checkEgress checks the allowlist of a request.
func (m *Manager) checkEgress(req Request) error {
	problems := req.Egress.Problems()
	switch {
	case len(problems) > 0:
		return fmt.Errorf("%w: network: %v", backend.ErrInvalid, problems[0])
	case req.Egress.IsZero():
		return nil
	case req.Network != backend.NetworkNone:
		return fmt.Errorf("%w: allowed hosts and services require a sandbox without a network", backend.ErrInvalid)
	case m.opts.Egress == nil:
		return fmt.Errorf("%w: allowed hosts and services require an egress proxy; set Options.Egress",
			backend.ErrUnsupported)
	}
	return nil
}
