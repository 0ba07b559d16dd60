package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// exitUnavailable is the exit status of a command that reaches no host (EX_UNAVAILABLE of sysexits.h).
const exitUnavailable = 69

// toolsVariable names the address of the service "tools", where it is not the usual one.
const toolsVariable = "WORKCELL_TOOLS"

// dialTools connects to the tools of the host.
func dialTools() (*net.UnixConn, error) {
	name := cmp.Or(os.Getenv(toolsVariable), wire.ToolsSocket)
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
}

// mcp bridges the MCP messages of in and out to the tools of the host until both directions have ended.
func mcp(in io.Reader, out io.Writer) int {
	conn, err := dialTools()
	if err == nil {
		err = bridge(conn, in, out)
	}
	if err == nil {
		return 0
	}
	if conn == nil || errors.Is(err, errRefused) { // a client reads JSON-RPC only
		_, _ = fmt.Fprintln(out, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"`+
			`host tools are not available: no listener, or this command has no host tools"}}`)
	}
	fail(os.Stderr, err)
	return exitUnavailable
}

// errRefused: a connection that nobody may have, or that no host takes, ends before anything came over it.
var errRefused = errors.New("the connection ended without an answer")

// bridge copies both ways, each to its end, unless the connection is closed or out takes nothing more.
func bridge(conn *net.UnixConn, in io.Reader, out io.Writer) error {
	defer conn.Close()
	idle := make(chan struct{}) // closed when in ended without a message
	sent := make(chan struct{}) // closed when all of in was sent
	go func() {
		defer close(sent)
		n, err := io.Copy(conn, in)
		if n == 0 && err == nil {
			close(idle)
		}
		_ = conn.CloseWrite() // the end of the connection shows below
	}()
	n, err := io.Copy(out, conn)
	gone := make(chan struct{}) // closed when the host has closed the connection, and not its direction alone
	go func() { server.AwaitHangup(conn); close(gone) }()
	if err == nil {
		select {
		case <-sent:
		case <-gone:
		}
	}
	select {
	case <-idle:
		return nil
	default:
	}
	if n == 0 {
		return errors.Join(errRefused, err)
	}
	return err
}
