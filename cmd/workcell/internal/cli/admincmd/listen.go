package admincmd

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/httpguard"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// listenFlags are the flags of all HTTP servers.
type listenFlags struct {
	listen    string
	tokenFile string
	hosts     []string
	cert, key string
}

// addTo adds the flags. when is the end of the help of --listen, and or is the end of the help of --token-file.
func (f *listenFlags) addTo(fs *pflag.FlagSet, address, when, or string) {
	fs.StringVar(&f.listen, "listen", address, "`HOST:PORT`: address to listen on"+when)
	fs.StringVar(&f.tokenFile, "token-file", "",
		"`FILE`: bearer tokens, one per line: NAME TOKEN [EXPIRY], EXPIRY as 2027-01-31T00:00:00Z"+or)
	fs.StringArrayVar(&f.hosts, "allow-host", nil,
		"also accept requests whose Host header is `NAME`, not only localhost or an IP address (repeatable)")
	fs.StringVar(&f.cert, "tls-cert", "", "`FILE`: path to the certificate chain for HTTPS")
	fs.StringVar(&f.key, "tls-key", "", "`FILE`: path to the private key for HTTPS")
}

func (f *listenFlags) tls() (*tls.Config, error) {
	if f.cert == "" && f.key == "" {
		return nil, nil
	}
	if f.cert == "" || f.key == "" {
		return nil, app.UsageError(errors.New("--tls-cert and --tls-key must be used together"), "")
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, app.Fail(app.ExitInvalid, err, "--tls-cert and --tls-key must be PEM files")
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// tokens reads the token file. Without a file, secret is the only token, if it is set. In a pod, the group may read the
// file, because Kubernetes sets mode 0440 for the files of a Secret if the pod has an fsGroup.
func (f *listenFlags) tokens(env environ.Lookup, secret string) ([]httpguard.Token, error) {
	if f.tokenFile == "" {
		if secret != "" {
			return []httpguard.Token{{Name: "default", Secret: secret}}, nil
		}
		return nil, nil
	}
	file, err := os.Open(f.tokenFile)
	if err != nil {
		return nil, app.Fail(app.ExitInvalid, err, "--token-file requires a file with lines of the form NAME TOKEN")
	}
	defer file.Close() // opened for reading only
	others := os.FileMode(0o077)
	if env.Get("KUBERNETES_SERVICE_HOST") != "" {
		others = 0o037
	}
	if st, err := file.Stat(); err == nil && st.Mode().Perm()&others != 0 && os.PathSeparator == '/' {
		return nil, app.Fail(app.ExitInvalid, fmt.Errorf("%s can be read or changed by other users", f.tokenFile),
			"run chmod 600 "+hint.Quote(f.tokenFile))
	}
	var tokens []httpguard.Token
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		t, err := parseToken(fields)
		if err != nil {
			return nil, app.Fail(app.ExitInvalid, fmt.Errorf("%s:%d: %w", f.tokenFile, n, err),
				"each line must be NAME TOKEN [EXPIRY]")
		}
		tokens = append(tokens, t)
	}
	if err := lines.Err(); err != nil {
		return nil, app.Fail(app.ExitInvalid, err, "")
	}
	if len(tokens) == 0 {
		return nil, app.Fail(app.ExitInvalid, fmt.Errorf("no tokens in %s", f.tokenFile),
			"each line must be NAME TOKEN [EXPIRY]")
	}
	return tokens, nil
}

func parseToken(fields []string) (httpguard.Token, error) {
	if len(fields) < 2 || len(fields) > 3 {
		return httpguard.Token{}, errors.New("expected a name and a token")
	}
	t := httpguard.Token{Name: fields[0], Secret: fields[1]}
	if len(fields) == 3 {
		var err error
		if t.Expires, err = time.Parse(time.RFC3339, fields[2]); err != nil {
			return httpguard.Token{}, fmt.Errorf("invalid expiry %q: must have the form 2027-01-31T00:00:00Z",
				sanitize.Cut(fields[2], 40))
		}
	}
	return t, nil
}

// scheme returns the scheme of URLs of a server.
func scheme(cert *tls.Config) string {
	if cert == nil {
		return "http"
	}
	return "https"
}
