package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/mcpserver"
)

// defaultMCPAddress is where `mcp --transport http` listens.
const defaultMCPAddress = "127.0.0.1:8765"

// mcpTokenEnv holds the token of a single owner.
const mcpTokenEnv = "WORKCELL_MCP_TOKEN"

// mcpHTTPFlags configure HTTP.
type mcpHTTPFlags struct {
	flags     *pflag.FlagSet
	listen    string
	tokenFile string
	hosts     []string
	origins   []string
	cert, key string
	maxConns  int
	rate      int
}

func (f *mcpHTTPFlags) addTo(cmd *cobra.Command) {
	fs := pflag.NewFlagSet("http", pflag.ContinueOnError)
	fs.StringVar(&f.listen, "listen", defaultMCPAddress, "address of --transport http")
	fs.StringVar(&f.tokenFile, "token-file", "", "file with bearer tokens, a line each: NAME TOKEN [EXPIRY as 2027-01-31T00:00:00Z]; or set "+mcpTokenEnv)
	fs.StringArrayVar(&f.hosts, "allow-host", nil, "name that clients may reach the server by, next to localhost and addresses; may be repeated")
	fs.StringArrayVar(&f.origins, "allow-origin", nil, "origin of a web page that may use the server, as https://app.example; may be repeated")
	fs.StringVar(&f.cert, "tls-cert", "", "file with the certificate chain, for HTTPS")
	fs.StringVar(&f.key, "tls-key", "", "file with the private key, for HTTPS")
	fs.IntVar(&f.maxConns, "max-connections", mcpserver.DefaultMaxConns, "open connections, more wait")
	fs.IntVar(&f.rate, "max-rate", mcpserver.DefaultRate, "requests per second of one client")
	f.flags = fs
	cmd.Flags().AddFlagSet(fs)
}

// given reports whether any of the flags was used.
func (f *mcpHTTPFlags) given() bool {
	given := false
	f.flags.VisitAll(func(flag *pflag.Flag) { given = given || flag.Changed })
	return given
}

// prepare reads tokens and certificate and begins to listen, so that what is wrong with them shows before an engine is
// asked for anything.
func (f *mcpHTTPFlags) prepare(a *app) (func(context.Context, *app, *mcpserver.Server) error, error) {
	for name, n := range map[string]int{"max-connections": f.maxConns, "max-rate": f.rate} {
		if n < 1 {
			return nil, usageError(fmt.Errorf("--%s %d is out of range", name, n), "at least 1")
		}
	}
	opts := &mcpserver.HTTPOptions{Hosts: f.hosts, Origins: f.origins, MaxConns: f.maxConns, Rate: f.rate}
	var err error
	if opts.Tokens, err = f.tokens(a.env); err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return nil, usageError(fmt.Errorf("--listen %q: %w", f.listen, err), "for example --listen 127.0.0.1:8765")
	}
	if ip := net.ParseIP(host); len(opts.Tokens) == 0 && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, usageError(fmt.Errorf("--listen %s: %w", f.listen, mcpserver.ErrNoToken),
			"pass --token-file, or set "+mcpTokenEnv+", or listen on 127.0.0.1")
	}
	if opts.TLS, err = f.tls(); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return nil, fail(exitFailed, err, "choose another address with --listen")
	}
	scheme := "http"
	if opts.TLS != nil {
		scheme = "https"
	}
	return func(ctx context.Context, a *app, srv *mcpserver.Server) error {
		a.notice("serving MCP on %s://%s%s", scheme, l.Addr(), mcpserver.PathMCP)
		if err := srv.ServeHTTP(ctx, l, opts); err != nil && ctx.Err() == nil {
			return err
		}
		return context.Cause(ctx)
	}, nil
}

func (f *mcpHTTPFlags) tls() (*tls.Config, error) {
	if f.cert == "" && f.key == "" {
		return nil, nil
	}
	if f.cert == "" || f.key == "" {
		return nil, usageError(errors.New("--tls-cert and --tls-key go together"), "")
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fail(exitInvalid, err, "--tls-cert and --tls-key name PEM files")
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// tokens reads the token file, or the one token of the environment.
func (f *mcpHTTPFlags) tokens(e environ.Lookup) ([]mcpserver.Token, error) {
	if f.tokenFile == "" {
		if secret := e.Get(mcpTokenEnv); secret != "" {
			return []mcpserver.Token{{Name: "default", Secret: secret}}, nil
		}
		return nil, nil
	}
	file, err := os.Open(f.tokenFile)
	if err != nil {
		return nil, fail(exitInvalid, err, "--token-file names a file with lines of NAME TOKEN")
	}
	defer file.Close() // only read from
	if st, err := file.Stat(); err == nil && st.Mode().Perm()&0o077 != 0 && os.PathSeparator == '/' {
		return nil, fail(exitInvalid, fmt.Errorf("%s can be read by other users", f.tokenFile), "chmod 600 "+f.tokenFile)
	}
	var tokens []mcpserver.Token
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		t, err := parseToken(fields)
		if err != nil {
			return nil, fail(exitInvalid, fmt.Errorf("%s:%d: %w", f.tokenFile, n, err), "a line is NAME TOKEN [EXPIRY]")
		}
		tokens = append(tokens, t)
	}
	if err := lines.Err(); err != nil {
		return nil, fail(exitInvalid, err, "")
	}
	if len(tokens) == 0 {
		return nil, fail(exitInvalid, fmt.Errorf("%s holds no token", f.tokenFile), "a line is NAME TOKEN [EXPIRY]")
	}
	return tokens, nil
}

func parseToken(fields []string) (mcpserver.Token, error) {
	if len(fields) < 2 || len(fields) > 3 {
		return mcpserver.Token{}, errors.New("not a name and a token")
	}
	t := mcpserver.Token{Name: fields[0], Secret: fields[1]}
	if len(fields) == 3 {
		var err error
		if t.Expires, err = time.Parse(time.RFC3339, fields[2]); err != nil {
			return mcpserver.Token{}, fmt.Errorf("the expiry %q is not of the form 2027-01-31T00:00:00Z", clip(fields[2], 40))
		}
	}
	return t, nil
}
