// Package pgtest provides PostgreSQL for tests: a private database on the server that hack/service.sh starts, and
// private servers that a test may kill.
package pgtest

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/workcell-dev/workcell/internal/checktest"
)

var must = checktest.Must

// Variable is the environment variable with the URL of a replacement for the server of hack/service.sh. The URL's user
// must be able to create databases.
const Variable = "WORKCELL_TEST_POSTGRES"

// Database creates a database and returns the URL. At the end of the test, the database is dropped and all connections
// are closed.
func Database(t testing.TB) string {
	t.Helper()
	return DatabaseOn(t, server(t))
}

// DatabaseOn is like Database on the specified server.
func DatabaseOn(t testing.TB, server string) string {
	t.Helper()
	name := "workcell_test_" + strings.ToLower(rand.Text())
	Exec(t, server, `CREATE DATABASE `+name)
	t.Cleanup(func() { Exec(t, server, `DROP DATABASE `+name+` WITH (FORCE)`) })
	u, err := url.Parse(server)
	must(t, err)
	u.Path = "/" + name
	return u.String()
}

// Exec runs one statement in a separate connection.
func Exec(t testing.TB, address, query string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	must(t, err)
	defer conn.Close(ctx) // the statement is done
	if _, err := conn.Exec(ctx, query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// Relay forwards connections from l to a server on a Unix socket. At the end of the test, it closes l and all
// connections.
func Relay(t testing.TB, l net.Listener, server string) {
	t.Helper()
	at, err := pgx.ParseConfig(server)
	must(t, err)
	network, address := pgconn.NetworkAddress(at.Host, at.Port)
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
	})
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			all.Go(func() { join(ctx, client, network, address) })
		}
	})
}

// join copies between a client and a server until one of them ends or ctx ends.
func join(ctx context.Context, client net.Conn, network, address string) {
	var both sync.WaitGroup
	defer both.Wait()    // after both are closed
	defer client.Close() //nolint:errcheck // no data is left to send
	server, err := net.Dial(network, address)
	if err != nil {
		return // the client tries again
	}
	defer server.Close() //nolint:errcheck // as above
	ctx, ended := context.WithCancel(ctx)
	pass := func(to io.Writer, from io.Reader) {
		defer ended()
		_, _ = io.Copy(to, from) // the sides report errors themselves
	}
	both.Go(func() { pass(server, client) })
	both.Go(func() { pass(client, server) })
	<-ctx.Done()
}

// server returns the URL of the shared server and starts the server if necessary.
func server(t testing.TB) string {
	t.Helper()
	if address := os.Getenv(Variable); address != "" {
		return address
	}
	cmd := exec.Command(script("service.sh"), "postgres", "start")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("hack/service.sh postgres start: %v", err)
	}
	return last(string(out))
}

// last returns the last line of an output.
func last(out string) string {
	out = strings.TrimSpace(out)
	return out[strings.LastIndexByte(out, '\n')+1:]
}

// script returns the path of a script in hack. It works from every directory of the module.
func script(name string) string {
	dir, err := os.Getwd()
	for err == nil {
		path := filepath.Join(dir, "hack", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return filepath.Join("hack", name)
}
