//go:build !no_ui

package admincmd

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/otelsetup"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/ui"
	"github.com/workcell-dev/workcell/internal/httpguard"
	"github.com/workcell-dev/workcell/internal/runfiles"
)

const (
	defaultUIAddress = "127.0.0.1:7373"
	uiFile           = "ui.json"   // in the state directory: how to get a link from the running server
	uiSecret         = "ui.secret" // in the state directory: signs cookies
)

type uiOptions struct {
	listenFlags
	readOnly, noOpen bool
	allow, proxies   []string
	userHeader       string
}

func newUICmd(a *command) *cobra.Command {
	o := &uiOptions{}
	cmd := a.Verb(cli.EngineFlags|cli.AuditFlags, &cobra.Command{
		Use:   "ui [flags]",
		Short: "Show runs and sandboxes in a browser",
		Long: `Show runs and sandboxes in a browser, and apply the changes of runs. The command prints a link that works once,
within five minutes, and serves pages until you interrupt it. If a server is already running for this state, the
command prints a new link for it and exits.

By default, only this host can connect. To listen on an address that other hosts can reach, set --token-file,
--tls-cert, and --tls-key. Behind a reverse proxy, set --behind-proxy, --allow-host, and either --token-file or
--user-header. Everyone who can log in sees all runs and sandboxes of the state.`,
		Example: "  workcell ui\n  workcell ui --read-only\n" +
			"  workcell ui --listen 0.0.0.0:7373 --token-file tokens --tls-cert cert.pem --tls-key key.pem\n" +
			"  workcell ui --listen 10.0.0.5:7373 --allow-host pages.example.org --behind-proxy 10.0.0.2/32 " +
			"--user-header X-Forwarded-User",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) },
	})
	o.addTo(cmd.Flags(), defaultUIAddress, "", "")
	cmd.Flags().BoolVar(&o.readOnly, "read-only", false, "permit no actions that change files, runs, or sandboxes")
	cmd.Flags().StringSliceVar(&o.allow, "allow", nil,
		"`ACTION`: permit only these actions: "+strings.Join(ui.Actions, ", ")+" (repeatable; default all)")
	cmd.Flags().StringSliceVar(&o.proxies, "behind-proxy", nil,
		"`CIDR`: addresses of the reverse proxy that terminates TLS; requests from other hosts are refused (repeatable)")
	cmd.Flags().StringVar(&o.userHeader, "user-header", "",
		"`NAME`: header in which the proxy sends the name of the logged-in user, instead of a login on the page")
	cmd.Flags().BoolVar(&o.noOpen, "no-open", false, "print the link but do not open a browser")
	return cmd
}

// running is the content of uiFile.
type running struct {
	URL   string `json:"url"`
	Pages string `json:"pages"` // URL for browsers
	Key   string `json:"key"`
}

func (o *uiOptions) run(ctx context.Context, a *command) error {
	list, err := o.tokens(a.Options.Env, "")
	if err != nil {
		return err
	}
	tokens, err := httpguard.NewTokens(list)
	if err != nil {
		return app.Fail(app.ExitInvalid, err, "check --token-file")
	}
	cert, err := o.tls()
	if err != nil {
		return err
	}
	proxies, err := o.check()
	if err != nil {
		return err
	}
	place, err := a.State()
	if err != nil {
		return err
	}
	file := place.Dir.Path(uiFile)
	if link := linkOf(ctx, file); link != "" {
		a.Notice("a server is already running")
		return o.show(a, link)
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return app.Fail(app.ExitFailed, err, "choose another address with --listen")
	}
	defer l.Close() // closed by the server
	secure, login := cert != nil || len(proxies) > 0, len(tokens) > 0 || o.userHeader != ""
	if !httpguard.IsLoopback(l.Addr()) && !(secure && login) {
		return app.UsageError(fmt.Errorf("--listen %s accepts connections from other hosts", o.listen),
			"pass --token-file, --tls-cert, and --tls-key, or listen on 127.0.0.1; for a reverse proxy, see --behind-proxy")
	}
	name := "PostgreSQL"
	if place.URL == "" {
		name = place.Dir.File()
	}
	secret, err := secretIn(place.Dir.Path(uiSecret))
	if err != nil {
		return err
	}
	local := localName(secret)
	j, err := a.OpenJournal(ctx)
	if err != nil {
		return err
	}
	defer j.Close() // every change was written before it was acknowledged
	opts := ui.Options{
		App: a.App, Journal: j, URL: o.url(l.Addr(), local, cert), Hosts: append(o.hosts, local), Tokens: tokens,
		ReadOnly: o.readOnly, Allow: o.allow, Proxies: proxies, UserName: o.userHeader, Secret: secret, User: a.Options.Env.Get("USER"), State: name, Version: a.Options.Version,
	}
	return a.Observe(ctx, false, func(ctx context.Context, _ *otelsetup.Tracing) error {
		s, err := ui.New(ctx, opts)
		if err != nil {
			return err
		}
		raw, err := json.Marshal(running{URL: scheme(cert) + "://" + l.Addr().String(), Pages: opts.URL, Key: s.Key()})
		if err != nil {
			return err
		}
		if err := writeFile(file, raw); err != nil {
			return err
		}
		defer os.Remove(file) // a leftover file has no effect
		if err := o.show(a, s.LoginURL()); err != nil {
			return err
		}
		a.Notice("serving pages on %s; press Ctrl-C to stop", opts.URL)
		return serveUI(ctx, a, s, l, cert)
	})
}

// check checks the flags for rights and proxies, and returns the addresses of the proxies.
func (o *uiOptions) check() (proxies []netip.Prefix, err error) {
	for _, action := range o.allow {
		if !slices.Contains(ui.Actions, action) {
			return nil, app.InvalidFlag("allow", action, "must be one of "+strings.Join(ui.Actions, ", "))
		}
	}
	for _, text := range o.proxies {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() || p.Bits() == 0 {
			return nil, app.InvalidFlag("behind-proxy", text, "must be a range of addresses, for example 10.0.0.2/32")
		}
		proxies = append(proxies, p)
	}
	switch {
	case o.userHeader != "" && len(proxies) == 0:
		return nil, app.UsageError(errors.New("--user-header requires --behind-proxy, because clients can forge headers"), "")
	case len(proxies) > 0 && len(o.hosts) == 0:
		return nil, app.UsageError(errors.New("--behind-proxy requires --allow-host"),
			"pass the host name of the proxy, for example --allow-host pages.example.org")
	}
	return proxies, nil
}

// secretIn returns the secret in a file, which it creates if necessary. Cookies stay valid after a restart.
func secretIn(file string) ([]byte, error) {
	raw, err := os.ReadFile(file)
	if len(raw) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return raw, err
	}
	raw = []byte(rand.Text())
	return raw, writeFile(file, raw)
}

// localName returns a name that browsers resolve to this host. Browsers send the cookies of a name to all ports. Other
// programs with a port do not know the name, so their pages cannot redirect a browser to it.
func localName(secret []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("name")) // never fails
	return "workcell-" + hex.EncodeToString(mac.Sum(nil)[:8]) + ".localhost"
}

func writeFile(file string, raw []byte) error {
	return runfiles.WriteWhole(file, func(w io.Writer) error {
		_, err := w.Write(raw)
		return err
	})
}

func serveUI(ctx context.Context, a *command, s *ui.Server, l net.Listener, cert *tls.Config) error {
	srv, failed := httpguard.Serve(ctx, l, s, ui.MaxConns, cert, a.Logger())
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	const limit = 5 * time.Second
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return errors.Join(err, s.Close(closing), httpguard.Stop(ctx, srv, limit)) // s first, which ends the streams
}

// url returns the URL of the server for browsers. local is the name of a loopback address.
func (o *uiOptions) url(at net.Addr, local string, cert *tls.Config) string {
	host, port, _ := net.SplitHostPort(at.String()) // always valid, because net set it
	switch {
	case len(o.proxies) > 0:
		return "https://" + o.hosts[0]
	case len(o.hosts) > 0:
		host = o.hosts[0]
	case httpguard.IsLoopback(at):
		host = local
	}
	return scheme(cert) + "://" + net.JoinHostPort(host, port)
}

// show prints a login link. If the host has a screen, it also opens a browser.
func (o *uiOptions) show(a *command, link string) error {
	if _, err := fmt.Fprintln(a.Stdout, link); err != nil {
		return err
	}
	program := map[string]string{"darwin": "open", "linux": "xdg-open"}[runtime.GOOS]
	screen := runtime.GOOS == "darwin" || a.Options.Env.Get("DISPLAY")+a.Options.Env.Get("WAYLAND_DISPLAY") != ""
	if o.noOpen || program == "" || !screen {
		return nil
	}
	if err := exec.Command(program, link).Start(); err != nil {
		a.Notice("cannot open a browser: %v", err)
	}
	return nil
}

var loginToken = regexp.MustCompile(`\A[A-Z2-7]+\z`)

// linkOf returns a login link of the running server from the file. Without such a server, it returns an empty string.
// After a server was killed, another program may listen on the address. It gets only a useless key.
func linkOf(ctx context.Context, file string) string {
	raw, err := os.ReadFile(file)
	var at running
	if err != nil || json.Unmarshal(raw, &at) != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.URL+"/link", nil)
	if err != nil {
		return ""
	}
	req.Header.Set("Authorization", "Bearer "+at.Key)
	answer, err := (&http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the same host
	}).RoundTrip(req)
	if err != nil {
		return ""
	}
	defer answer.Body.Close() // only read
	link, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	token, ok := strings.CutPrefix(string(link), at.Pages+"/login?t=")
	if err != nil || answer.StatusCode != http.StatusOK || !ok || !loginToken.MatchString(token) {
		return ""
	}
	return string(link)
}
