package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/forward"
)

func newSessionsForwardCmd(a *app) *cobra.Command {
	address := "127.0.0.1"
	cmd := a.verb(engineFlags|outputFlags, &cobra.Command{
		Use:   "forward [flags] SANDBOX PORT|HOST:PORT…",
		Short: "Reach ports of a sandbox from this machine",
		Long: `Have this machine listen for what a sandbox listens on, until the command is ended or the sandbox is gone. The sandbox needs
no network, and learns nothing of the machine's ports. PORT is one of the sandbox's loopback and the same here; HOST:PORT is port
HOST here, and :PORT any that is free. Programs here connect to 127.0.0.1. Connections count as use of the sandbox, waiting for
them does not.`,
		Example:    "  workcell sessions forward mybox 8080\n  workcell sessions forward mybox 8081:8080 :5432",
		Args:       cobra.MinimumNArgs(2),
		SuggestFor: []string{"port-forward", "ports", "port", "expose"},
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := netip.ParseAddr(address)
			if err != nil || at.Zone() != "" {
				return usageError(fmt.Errorf("--address %q is not an address", address), "127.0.0.1, or 0.0.0.0 for whoever reaches this machine")
			}
			ports, err := parsePorts(args[1:])
			if err != nil {
				return err
			}
			return a.inSandbox(func(ctx context.Context, s *session.Session, _ []string) error {
				return a.forward(ctx, s, at, ports)
			})(cmd, args)
		},
	})
	cmd.Flags().StringVar(&address, "address", address, "`IP` address of this machine to listen on; beyond the loopback others reach the sandbox, too")
	return cmd
}

func parsePorts(args []string) ([]forward.Port, error) {
	var ports []forward.Port
	for _, text := range args {
		p, err := forward.ParsePort(text)
		if err != nil {
			return nil, usageError(err, "workcell sessions forward SANDBOX 8080, or 8081:8080 for port 8081 here")
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// forwarded is a port in the output of the command.
type forwarded struct {
	Port    uint16 `json:"port"`    // inside
	Address string `json:"address"` // here
	URL     string `json:"url"`     // for what speaks HTTP
}

// forward forwards ports until the command is ended or the sandbox is gone.
func (a *app) forward(ctx context.Context, s *session.Session, at netip.Addr, ports []forward.Port) error {
	f, err := forward.Listen(s, ports, &forward.Options{Address: at, Log: a.logger()})
	if err != nil {
		return fail(exitFailed, err, "HOST:PORT listens on another port here, :PORT on any that is free")
	}
	if !at.IsLoopback() {
		a.notice("warning: whoever reaches %s reaches these ports of the sandbox, without a password of ours", at)
	}
	var rows []forwarded
	for i, addr := range f.Addrs() {
		rows = append(rows, forwarded{ports[i].Sandbox, addr.String(), "http://" + reachable(addr)})
	}
	err = a.print(rows, func(w io.Writer) error {
		var errs []error
		for _, r := range rows {
			_, err := fmt.Fprintf(w, "%s -> port %d of the sandbox\n", r.Address, r.Port)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Serve(ctx)
}

// reachable returns an address that programs of this machine can connect to.
func reachable(addr net.Addr) string {
	ap := addr.(*net.TCPAddr).AddrPort() // what is forwarded
	host := ap.Addr().Unmap()
	if host.IsUnspecified() && host.Is4() {
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	} else if host.IsUnspecified() {
		host = netip.IPv6Loopback()
	}
	return netip.AddrPortFrom(host, ap.Port()).String()
}
