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

// exitUnavailable is the exit code of a command if the host is unavailable (EX_UNAVAILABLE of sysexits.h).
const exitUnavailable = 69

// toolsVariable is the environment variable with the address of the service "tools", if it is not the default.
const toolsVariable = "WORKCELL_TOOLS"

// dialTools connects to the host tools.
func dialTools(address string) (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: address, Net: "unix"})
}

// mcp bridges the MCP messages of in and out to the host tools until both directions have ended.
func mcp(in io.Reader, out io.Writer) int {
	conn, err := dialTools(cmp.Or(os.Getenv(toolsVariable), wire.ToolsSocket))
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

// errRefused is the error for a connection without data, because the command has no host tools or the host does not
// accept it.
var errRefused = errors.New("the connection ended without an answer")

// bridge copies data in both directions until both end, the connection is closed, or writing to out fails.
func bridge(conn *net.UnixConn, in io.Reader, out io.Writer) error {
	defer conn.Close()
	idle := make(chan struct{}) // closed if in ended without a message
	sent := make(chan struct{}) // closed when all of in was sent
	go func() {
		defer close(sent)
		n, err := io.Copy(conn, in)
		if n == 0 && err == nil {
			close(idle)
		}
		_ = conn.CloseWrite() // the copy below detects the end of the connection
	}()
	n, err := io.Copy(out, conn)
	gone := make(chan struct{}) // closed when the host has closed both directions of the connection
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
