package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/guest/netguard"
)

// factsAge is how long the addresses of the engine's host are cached.
const factsAge = time.Minute

// sandboxNetwork caches information about the networks of the engine.
type sandboxNetwork struct {
	guarded sync.Map // by container ID: the start time for which this process has set the rules

	mu    sync.Mutex // guards the fields below; not held during calls
	facts netguard.Facts
	asked time.Time // zero if facts is not set
}

// guardNetwork blocks forbidden destinations for a running bridged sandbox, unless this process has already done so
// since the sandbox was started. A helper container shares the sandbox's network namespace and sets the rules there.
// Only this container has the privilege. Setting the rules again replaces them atomically. Every access to a sandbox
// calls guardNetwork. Therefore the rules apply before the driver runs any user command, even if another program
// started the sandbox or a process died during the start.
func (b *driver) guardNetwork(ctx context.Context, res container.InspectResponse) error {
	if describeContainer(res).Network != backend.NetworkBridge {
		return nil
	}
	if at, _ := b.network.guarded.Load(res.ID); at == res.State.StartedAt {
		return nil
	}
	facts, err := b.hostFacts(ctx)
	if err != nil {
		return b.guardError(ctx, res, err)
	}
	rules := netguard.Rules{Allow: b.opts.AllowNets, Resolvers: facts.Resolvers}
	for _, a := range facts.Addresses {
		rules.Deny = append(rules.Deny, netip.PrefixFrom(a, a.BitLen()))
	}
	if _, err := b.runGuard(ctx, "container:"+res.ID, []string{"NET_ADMIN"}, netguard.ModeApply, rules); err != nil {
		return b.guardError(ctx, res, err)
	}
	b.network.guarded.Store(res.ID, res.State.StartedAt)
	return nil
}

// guardError returns ErrLost if the sandbox has exited, ErrUnavailable for temporary failures of the engine, and
// otherwise ErrUnsupported. The driver never provides an unfiltered network instead.
func (b *driver) guardError(ctx context.Context, res container.InspectResponse, err error) error {
	if host.IsAny(err, context.Canceled, context.DeadlineExceeded, backend.ErrUnavailable, backend.ErrClosed) {
		return err
	}
	now, ierr := b.inspect(ctx, res.ID)
	kind := backend.ErrUnsupported
	switch {
	case errors.Is(ierr, backend.ErrNotFound), ierr == nil && !now.State.Running:
		return fmt.Errorf("docker: the sandbox exited before its network was filtered: %w", backend.ErrLost)
	case ierr != nil:
		return ierr
	case now.State.StartedAt != res.State.StartedAt, kit.Unexplained(err):
		kind = backend.ErrUnavailable
	}
	return fmt.Errorf("docker: cannot filter the bridged network: %v: %w", err, kind)
}

// hostFacts returns the addresses and resolvers of the engine's host. A helper container in the host's network reads
// them.
func (b *driver) hostFacts(ctx context.Context) (netguard.Facts, error) {
	n := &b.network
	n.mu.Lock()
	facts, fresh := n.facts, !n.asked.IsZero() && time.Since(n.asked) < factsAge
	n.mu.Unlock()
	if fresh {
		return facts, nil
	}
	out, err := b.runGuard(ctx, "host", nil, netguard.ModeProbe, nil)
	if err != nil {
		return netguard.Facts{}, err
	}
	if err := json.Unmarshal(out, &facts); err != nil {
		return netguard.Facts{}, fmt.Errorf("docker: addresses of the engine's host: %w", err)
	}
	if facts.Addresses, err = addNear(facts.Addresses, b.api.DaemonHost(), netguard.Probe); err != nil {
		return netguard.Facts{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.facts, n.asked = facts, time.Now()
	return facts, nil
}

// addNear adds the addresses of this host if the engine has a local socket. The host network of a rootless engine is a
// separate network namespace without the addresses of the real host, and connections would come from the host itself.
func addNear(known []netip.Addr, engine string, probe func() (netguard.Facts, error)) ([]netip.Addr, error) {
	if scheme, _, _ := strings.Cut(engine, "://"); scheme != "unix" && scheme != "npipe" {
		return known, nil
	}
	near, err := probe()
	if err != nil {
		return nil, fmt.Errorf("docker: addresses of this host: %w", err)
	}
	for _, a := range near.Addresses { // usually all known
		if !slices.Contains(known, a) {
			known = append(known, a)
		}
	}
	return known, nil
}

// runGuard runs the guest agent's network mode in a helper container and returns the output. It removes the container
// afterwards.
func (b *driver) runGuard(
	ctx context.Context, network string, caps []string, mode string, arg any,
) (out []byte, err error) {
	cmd := []string{netguard.Command, mode}
	if arg != nil {
		js, err := json.Marshal(arg)
		if err != nil {
			return nil, fmt.Errorf("docker: %s: %w", mode, err)
		}
		cmd = append(cmd, string(js))
	}
	config := &container.HostConfig{
		NetworkMode: container.NetworkMode(network), IpcMode: container.IPCModePrivate,
		CapDrop: []string{"ALL"}, CapAdd: caps, SecurityOpt: []string{"no-new-privileges"}, ReadonlyRootfs: true,
		LogConfig:  container.LogConfig{Type: "none"},
		UsernsMode: "host", // if the engine remaps users, access to another container's network needs this
		Resources:  container.Resources{PidsLimit: new(int64(64))},
		Mounts:     []mount.Mount{b.guest.plain.mount(true)},
	}
	h := helper{labels: b.guest.plain.labels(backend.RoleInit), host: config, adjust: func(c *container.Config) {
		c.Cmd, c.AttachStdout = cmd, true
		c.Healthcheck = &container.HealthConfig{Test: []string{noneShell}}
	}}
	err = b.withHelper(ctx, h, func(id string) (err error) {
		out, err = kit.Call(ctx, b.calls, "network guard", kit.With(b.runOnce, id))
		return err
	})
	return out, err
}

// runOnce starts a container and returns the output if it exits successfully.
func (b *driver) runOnce(ctx context.Context, id string) ([]byte, error) {
	s, err := b.hijack(ctx, "attach", "/containers/"+id+"/attach", url.Values{"stream": {"1"}, "stdout": {"1"}}, nil, nil)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() }) // unblocks the read below
	defer stop()
	if err := b.startContainer(ctx, id); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	out, err := io.ReadAll(io.LimitReader(s, 1<<20))
	if err := errors.Join(err, s.Close()); err != nil {
		return nil, b.calls.Fail(ctx, "read output", err)
	}
	code, err := kit.Call(ctx, b.calls, "wait", func(ctx context.Context) (int64, error) { return b.exitCode(ctx, id) })
	if err == nil && code != 0 {
		text := kit.Scrub(fmt.Sprintf("exited with %d: %.200s", code, out))
		err = b.calls.Error("network guard", backend.ErrUnsupported, text)
	}
	return out, err
}

func (b *driver) exitCode(ctx context.Context, id string) (int64, error) {
	res, errs := b.api.ContainerWait(ctx, id, container.WaitConditionNotRunning)
	select {
	case r := <-res:
		if r.Error != nil {
			return 0, errors.New(r.Error.Message)
		}
		return r.StatusCode, nil
	case err := <-errs:
		return 0, err
	}
}
