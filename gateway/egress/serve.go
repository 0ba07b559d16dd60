package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
)

// fullKey marks the context of a connection above the limit.
type fullKey struct{}

// serve handles a connection of code in a sandbox. It closes connections without an HTTP method at the beginning.
func (d *door) serve(ctx context.Context, conn net.Conn) {
	if d.conns.Add(1) > int64(d.g.o.Limits.Conns) {
		ctx = context.WithValue(ctx, fullKey{}, true)
	}
	defer d.conns.Add(-1)
	c := &client{conn, bufio.NewReader(conn)}
	_ = c.SetReadDeadline(time.Now().Add(headerTime)) // Peek detects a closed connection
	first, err := c.r.Peek(1)
	_ = c.SetReadDeadline(time.Time{}) // Peek detects a closed connection
	if err == nil && first[0] >= 'A' && first[0] <= 'z' {
		d.serveHTTP(ctx, c, nil)
	}
}

// maxGrants is the maximum size of the file with additional hosts.
const maxGrants = 64 << 10

// grantFile returns the file with an operator's additions to the sandbox's allowlist.
func grantFile(dir, id string) string { return filepath.Join(dir, filepath.Base(id)) }

// Allow allows a sandbox to connect to hosts outside of its allowlist. Hosts denied by the list stay denied. The
// gateway whose Options.Grants is dir, in any process, applies the change from the next connection on. The sandbox must
// have an allowlist. For an invalid host, the error wraps backend.ErrInvalid. If the additional hosts of the sandbox
// exceed 64 KiB, the error wraps backend.ErrTooLarge.
func Allow(dir, id string, hosts ...string) error {
	if err := (rules.Hosts{Allow: hosts}).Problems(); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrInvalid, err[0])
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(grantFile(dir, id), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	text := strings.Join(hosts, "\n") + "\n"
	info, err := f.Stat()
	if err == nil && info.Size()+int64(len(text)) > maxGrants {
		err = fmt.Errorf("%w: the additional hosts of a sandbox exceed %d KiB", backend.ErrTooLarge, maxGrants>>10)
	}
	if err == nil {
		_, err = f.WriteString(text)
	}
	return errors.Join(err, f.Close())
}

// granted returns the additional hosts of a sandbox.
func (g *Gateway) granted(id string) []rules.HostRule {
	if g.o.Grants == "" {
		return nil
	}
	f, err := os.Open(grantFile(g.o.Grants, id))
	if err != nil {
		return nil // the file usually does not exist
	}
	defer f.Close() //nolint:errcheck // only read from
	text, err := io.ReadAll(io.LimitReader(f, maxGrants))
	if err != nil {
		g.o.Log.Warn("egress: cannot read the operator's rules", "sandbox", id, "error", err)
		return nil
	}
	var allowed []rules.HostRule
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // part of a name would be another name
	for _, line := range strings.Fields(string(whole)) {
		if r, problem := rules.ParseHost(line); problem == nil {
			allowed = append(allowed, r)
		}
	}
	return allowed
}
