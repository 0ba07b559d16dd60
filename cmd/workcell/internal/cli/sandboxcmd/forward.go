package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/forward"
)

func newSandboxForwardCmd(a *command) *cobra.Command {
	address := "127.0.0.1"
	cmd := a.Verb(cli.EngineFlags|cli.OutputFlags, &cobra.Command{
		Use:   "forward [flags] SANDBOX PORT|LOCAL:PORT…",
		Short: "Forward local ports to a sandbox",
		Long: `Forward local ports to ports in a sandbox. Forwarding stops when you interrupt the command or the sandbox is
removed. The sandbox needs no network access, and it cannot connect to ports of this host.

PORT forwards a local port to the same port on the loopback interface of the sandbox. LOCAL:PORT uses another local
port, and :PORT any free local port. Local programs connect to 127.0.0.1. Open connections count as use of the sandbox;
waiting for connections does not.`,
		Example:    "  workcell sandbox forward mybox 8080\n  workcell sandbox forward mybox 8081:8080 :5432",
		Args:       cobra.MinimumNArgs(2),
		SuggestFor: []string{"port-forward", "ports", "port", "expose"},
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := netip.ParseAddr(address)
			if err != nil || at.Zone() != "" {
				return app.InvalidFlag("address", address, "use 127.0.0.1, or 0.0.0.0 to accept other hosts")
			}
			ports, err := parsePorts(args[1:])
			if err != nil {
				return err
			}
			return a.inSandbox(func(ctx context.Context, _ *app.Manager, s *session.Session, _ []string) error {
				return a.forward(ctx, s, at, ports)
			})(cmd, args)
		},
	})
	cmd.Flags().StringVar(&address, "address", address,
		"local `IP` address to listen on; if not loopback, other hosts can connect")
	return cmd
}

func parsePorts(args []string) ([]forward.Port, error) {
	var ports []forward.Port
	for _, text := range args {
		p, err := forward.ParsePort(text)
		if err != nil {
			return nil, app.UsageError(err, "for example 8080, or 8081:8080 for local port 8081")
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// forwarded is a forwarded port in the output.
type forwarded struct {
	Port    uint16 `json:"port"`    // in the sandbox
	Address string `json:"address"` // on the host
	URL     string `json:"url"`     // for HTTP clients
}

// forward forwards ports until the command is stopped or the sandbox is gone.
func (a *command) forward(ctx context.Context, s *session.Session, at netip.Addr, ports []forward.Port) error {
	f, err := forward.Listen(s.Sandbox, ports, &forward.Options{Address: at, Log: a.Logger()})
	if err != nil {
		return app.Fail(app.ExitFailed, err, "use LOCAL:PORT for another local port, or :PORT for any free port")
	}
	if !at.IsLoopback() {
		a.Notice("warning: any host that can connect to %s can use these ports; no password is required", at)
	}
	var rows []forwarded
	var lines []string
	for i, addr := range f.Addrs() {
		rows = append(rows, forwarded{ports[i].Sandbox, addr.String(), "http://" + reachable(addr)})
		lines = append(lines, fmt.Sprintf("%s -> port %d of the sandbox", addr, ports[i].Sandbox))
	}
	if err := a.PrintLines(rows, lines...); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Serve(ctx)
}

// reachable returns an address to which programs on the host can connect.
func reachable(addr net.Addr) string {
	ap := addr.(*net.TCPAddr).AddrPort() // only TCP is forwarded
	host := ap.Addr().Unmap()
	if host.IsUnspecified() && host.Is4() {
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	} else if host.IsUnspecified() {
		host = netip.IPv6Loopback()
	}
	return netip.AddrPortFrom(host, ap.Port()).String()
}
