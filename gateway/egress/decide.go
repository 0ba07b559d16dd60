package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/sandbox"
)

// Timeouts while a connection is established.
const (
	resolveTime = 10 * time.Second
	dialTime    = 10 * time.Second
	// maxAddresses is the maximum number of addresses tried per name.
	maxAddresses = 8
)

// target is the destination of a connection from a sandbox.
type target struct {
	host string // normalized by rules.Host
	port uint16
}

func (t target) String() string { return net.JoinHostPort(t.host, strconv.Itoa(int(t.port))) }

// addr returns the host as an address. It returns false if the host is a name.
func (t target) addr() (netip.Addr, bool) {
	a, err := netip.ParseAddr(t.host)
	return a, err == nil
}

// newTarget parses a host, which may be an address without brackets, and a port.
func newTarget(host, port string) (target, bool) {
	n, err := strconv.ParseUint(port, 10, 16)
	name, ok := rules.Host(host)
	return target{name, uint16(n)}, ok && err == nil && n > 0
}

// refusal is the reason why a connection is refused or failed.
type refusal struct {
	status int
	kind   string // error type of RFC 9209 for the Proxy-Status header
	rule   string // refusing rule; empty for network errors
	text   string
	hint   string
}

func (r *refusal) Error() string { return r.text }

func refuse(kind, rule, hint, format string, args ...any) *refusal {
	return &refusal{http.StatusForbidden, kind, rule, fmt.Sprintf(format, args...), hint}
}

// Error types of refusals, from RFC 9209.
const (
	kindDenied  = "http_request_denied"
	kindAddress = "destination_ip_prohibited"
	kindTLS     = "tls_protocol_error"
	kindLimit   = "connection_limit_reached"
	kindDNS     = "dns_error"
	kindDown    = "destination_unavailable"
)

// attempt is a requested connection, from the decision to the end.
type attempt struct {
	d     *door
	to    target
	ctx   context.Context
	span  trace.Span
	rule  string // allowing rule
	began time.Time
}

// begin starts the span of a connection. ctx has the trace and the audit record of the running command.
func (d *door) begin(ctx context.Context, to target) *attempt {
	ctx, span := telemetry.StartWith(ctx, d.g.o.TracerProvider, telemetry.SpanEgress,
		telemetry.KeySandboxID.String(d.sandbox), telemetry.Text(semconv.ServerAddress, to.host),
		semconv.ServerPort.Int(int(to.port)))
	return &attempt{d: d, to: to, ctx: ctx, span: span, began: time.Now()}
}

// note records a refusal for the caller of the command. It must be called before the code in the sandbox gets the
// refusal.
func (a *attempt) note(r *refusal) {
	if r.rule != "" {
		a.d.note(sandbox.EgressRefusal{Host: a.to.String(), Rule: r.rule, Hint: r.hint})
	}
}

// end logs the decision and the end of the connection, except for refusals above audit.MaxRefused. conn is nil if no
// connection was established.
func (a *attempt) end(conn *metered, err error) {
	attrs := []any{slog.String("sandbox", a.d.sandbox), slog.String("host", a.to.host), slog.Int("port", int(a.to.port))}
	var in, out int64
	if conn != nil {
		in, out = conn.in.Load(), conn.out.Load()
	}
	decision, message := "allowed", "egress: connected"
	r, isRefusal := errors.AsType[*refusal](err)
	switch {
	case isRefusal && r.rule != "":
		if n := a.d.denied.Add(1); n > audit.MaxRefused {
			if n == audit.MaxRefused+1 {
				a.d.g.o.Log.Warn("egress: further refusals are not recorded", "sandbox", a.d.sandbox)
			}
			return // a span without an end is not exported
		}
		decision, message, a.rule = "denied", "egress: refused", r.rule
		_ = a.record(audit.Refused, r.rule) // a failed write ends the running commands
	case err != nil:
		message = "egress: failed"
	}
	if isRefusal {
		telemetry.Fail(a.span, r.kind)
		attrs = append(attrs, slog.String("kind", r.kind))
	}
	a.span.SetAttributes(telemetry.KeyDecision.String(decision), telemetry.Text(telemetry.KeyRule, a.rule),
		telemetry.KeyReceived.Int64(in), telemetry.KeySent.Int64(out))
	a.span.End()
	a.d.g.o.Log.Info(message, append(attrs, slog.String("decision", decision), slog.String("rule", a.rule),
		slog.Int64("received", in), slog.Int64("sent", out), slog.Duration("after", time.Since(a.began)))...)
}

// record writes a decision to the command's audit record.
func (a *attempt) record(decision, rule string) error {
	return audit.Note(a.ctx, func(r *audit.Record) {
		r.Event, r.Sandbox, r.Host, r.Decision, r.Rule = audit.EventEgress, a.d.sandbox, a.to.String(), decision, rule
	})
}

// match returns the rule for an allowed host.
func (d *door) match(ctx context.Context, to target) (rules.HostMatch, *refusal) {
	if ctx.Value(fullKey{}) != nil {
		return rules.HostMatch{}, &refusal{http.StatusServiceUnavailable, kindLimit, "limits.conns",
			fmt.Sprintf("%s is not allowed: the sandbox has %d open connections", to, d.g.o.Limits.Conns),
			"Close connections, or make fewer at once, then try again."}
	}
	if d.web.Owns(to.host) {
		if to.port == 80 { // HTTP in a tunnel, of which each request is checked
			return rules.HostMatch{Rule: "services"}, nil
		}
		return rules.HostMatch{}, withoutPort(to)
	}
	m, why := d.set.Match(to.host, to.port, d.g.granted(d.sandbox)...)
	if why == "" {
		return m, nil
	}
	hint := "The sandbox can reach only the hosts in network.allow. " +
		"Continue without this host, or report which host is needed and why."
	if _, ip := to.addr(); ip {
		hint = "Connect by name: the host resolves it. " + hint
	}
	return m, refuse(kindDenied, why, hint, "%s is not allowed: %s", to, why)
}

// withoutPort refuses a connection to a service without HTTP on port 80.
func withoutPort(to target) *refusal {
	return refuse(kindTLS, "services: http", "Use http://"+to.host+". The host uses TLS for the rest of the way.",
		"%s is not allowed: services have only HTTP on port 80", to)
}

// open connects to an allowed host.
func (a *attempt) open(ctx context.Context, m rules.HostMatch) (*metered, *refusal) {
	if a.d.web.Owns(a.to.host) { // TLS in a tunnel
		return nil, withoutPort(a.to)
	}
	a.rule = m.Rule
	if a.d.bytes.Load() <= 0 {
		return nil, a.spent()
	}
	addrs, refused := a.d.g.resolve(ctx, a.to)
	if refused != nil {
		return nil, refused
	}
	if err := a.record(audit.Allowed, m.Rule); err != nil {
		return nil, &refusal{http.StatusBadGateway, kindDown, "", "cannot record the connection", ""}
	}
	conn, err := a.d.g.connect(ctx, addrs, a.to.port)
	if err != nil {
		return nil, &refusal{http.StatusBadGateway, kindDown, "", fmt.Sprintf("%s does not respond", a.to), ""}
	}
	return newMetered(ctx, a.d, conn, func() { a.note(a.spent()) }), nil
}

func (a *attempt) spent() *refusal {
	return refuse(kindLimit, "limits.bytes", "The sandbox has reached its transfer limit.",
		"%s is not allowed: transfer limit of the sandbox reached", a.to)
}

// resolve returns the addresses of a host if all of them are allowed. The connection uses only these addresses and does
// not resolve the name again.
func (g *Gateway) resolve(ctx context.Context, to target) ([]netip.Addr, *refusal) {
	addrs := make([]netip.Addr, 1)
	var literal bool
	if addrs[0], literal = to.addr(); !literal {
		ctx, cancel := context.WithTimeout(ctx, resolveTime)
		defer cancel()
		name := to.host
		if strings.Contains(name, ".") {
			name += "." // prevents the resolver from adding the host's search domains
		}
		var err error
		if addrs, err = g.o.Resolver.LookupNetIP(ctx, "ip", name); err != nil || len(addrs) == 0 {
			return nil, &refusal{http.StatusBadGateway, kindDNS, "", fmt.Sprintf("no address found for %s", to.host), ""}
		}
	}
	own, err := ownNetworks()
	if err != nil {
		return nil, &refusal{http.StatusBadGateway, kindDown, "", "cannot list the host's networks", ""}
	}
	for _, addr := range addrs {
		if why := addressRule(addr, g.o.AllowPrivate, own); why != "" {
			return nil, refuse(kindAddress, "address: "+why,
				"Only public addresses are allowed. An operator can allow others with --egress-allow-private.",
				"%s is not allowed: one of its addresses is %s", to, why)
		}
	}
	return addrs[:min(len(addrs), maxAddresses)], nil
}

// connect connects to the first answering address.
func (g *Gateway) connect(ctx context.Context, addrs []netip.Addr, port uint16) (conn net.Conn, err error) {
	for _, addr := range addrs {
		address := netip.AddrPortFrom(addr.Unmap().WithZone(""), port)
		if conn, err = g.dial(ctx, "tcp", address.String()); err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

// body returns the text of a refusal for the client.
func (r *refusal) body() string { return strings.TrimSpace("workcell: "+r.text+"\n"+r.hint) + "\n" }
