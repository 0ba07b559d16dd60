package ui

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/httpguard"
)

const (
	linkTime   = 5 * time.Minute // a login link works once within this time
	cookieTime = 12 * time.Hour
	maxLinks   = 64
)

// LoginURL returns a login link for one browser.
func (s *Server) LoginURL() string { return s.opts.URL + "/login?t=" + s.link() }

// link returns a new one-time token.
func (s *Server) link() string {
	token := rand.Text() // at least 128 bits
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for digest, until := range s.links {
		if len(s.links) >= maxLinks || until.Before(now) {
			delete(s.links, digest)
		}
	}
	s.links[sha256.Sum256([]byte(token))] = now.Add(linkTime)
	return token
}

// use returns a login with a one-time token or with a token of the token file. A one-time token then works no longer.
func (s *Server) use(token string) (t httpguard.Token, ok bool) {
	digest := sha256.Sum256([]byte(token))
	s.mu.Lock()
	until, found := s.links[digest]
	delete(s.links, digest)
	s.mu.Unlock()
	if found && time.Now().Before(until) {
		return httpguard.Token{Name: httpguard.Local}, true
	}
	t, ok = s.opts.Tokens.Find(token)
	t.Secret = token
	return t, ok
}

// proxied reports whether a request is from a reverse proxy of Options.Proxies, and whether other clients may connect
// directly: programs of this host, or all if no proxies are set.
func (s *Server) proxied(r *http.Request) (proxied, direct bool) {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	from := at.Addr().Unmap()
	proxied = err == nil && slices.ContainsFunc(s.opts.Proxies, func(p netip.Prefix) bool { return p.Contains(from) })
	own, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	here := from.IsLoopback() || own != nil && own.AddrPort().Addr().Unmap() == from
	return proxied, len(s.opts.Proxies) == 0 || here
}

// forwarded returns the last value of a list in a header. Earlier values may be the client's.
func forwarded(r *http.Request, name string) string {
	list := strings.Join(r.Header.Values(name), ",")
	return strings.TrimSpace(list[strings.LastIndexByte(list, ',')+1:])
}

// maxUserName is the maximum size of a user's name from a proxy.
const maxUserName = 128

// identify returns the client of a request: the user named by the proxy, or the owner of the bearer token or cookie.
func (s *Server) identify(r *http.Request) (who string, ok bool) {
	if proxied, _ := s.proxied(r); proxied && s.opts.UserName != "" {
		names := r.Header.Values(s.opts.UserName) // several: one may be the client's
		if len(names) != 1 || names[0] == "" || names[0] == httpguard.Local || len(names[0]) > maxUserName ||
			strings.Contains(names[0], ",") {
			return "", false
		}
		return names[0], true
	}
	if token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); bearer {
		t, ok := s.opts.Tokens.Find(token)
		return t.Name, ok
	}
	for _, c := range r.CookiesNamed(s.cookieName()) {
		mac, text, _ := strings.Cut(c.Value, ".")
		until, who, _ := strings.Cut(text, ".")
		at, err := strconv.ParseInt(until, 10, 64)
		if err == nil && time.Now().Before(time.Unix(at, 0)) && s.proves(mac, text, who) {
			return who, true
		}
	}
	return "", false
}

// proves reports whether a cookie is from a login with a link, or with a token that is still in the token file.
func (s *Server) proves(mac, text, who string) bool {
	if who == httpguard.Local {
		return equal(mac, s.sign(text, sha256.Sum256(nil)))
	}
	for digest, t := range s.opts.Tokens {
		if t.Name == who && equal(mac, s.sign(text, digest)) {
			return true
		}
	}
	return false
}

// equal takes the same time for all texts of a length.
func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func (s *Server) sign(text string, token [sha256.Size]byte) string {
	mac := hmac.New(sha256.New, s.opts.Secret)
	mac.Write(append([]byte(text), token[:]...)) // never fails
	return hex.EncodeToString(mac.Sum(nil))
}

// cookieName has the port, because browsers send a host's cookies to all ports.
func (s *Server) cookieName() string {
	u, err := url.Parse(s.opts.URL)
	if err != nil || u.Scheme == "https" {
		return "__Host-wc"
	}
	return "wc_" + u.Port()
}

// enter sets the cookie of a client after the login. The cookie does not outlive the token.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, t httpguard.Token) error {
	until := time.Now().Add(cookieTime)
	if !t.Expires.IsZero() && t.Expires.Before(until) {
		until = t.Expires
	}
	text := fmt.Sprintf("%d.%s", until.Unix(), t.Name)
	mac := s.sign(text, sha256.Sum256([]byte(t.Secret)))
	http.SetCookie(w, &http.Cookie{
		Name: s.cookieName(), Value: mac + "." + text, Path: "/", Expires: until, HttpOnly: true,
		Secure: strings.HasPrefix(s.cookieName(), "__Host-"), SameSite: http.SameSiteLaxMode,
	})
	return redirect(w, r, "/runs") // without the token in the address bar
}

// login logs in a browser with a login link.
func (s *Server) login(w http.ResponseWriter, r *http.Request) error {
	token := r.URL.Query().Get("t")
	if r.Method == http.MethodGet && token != "" { // link checkers send HEAD
		if t, ok := s.use(token); ok {
			return s.enter(w, r, t)
		}
	}
	s.askLogin(w, r)
	return nil
}

// loginForm logs in a browser with a token from the user.
func (s *Server) loginForm(w http.ResponseWriter, r *http.Request) error {
	if t, ok := s.use(strings.TrimSpace(r.PostFormValue("t"))); ok {
		return s.enter(w, r, t)
	}
	s.askLogin(w, r)
	return nil
}

// askLogin answers a client without a login. The answer does not depend on the path.
func (s *Server) askLogin(w http.ResponseWriter, r *http.Request) {
	tried := r.URL.Path == "/login" && (r.Method == http.MethodPost || r.URL.Query().Get("t") != "")
	r.URL = &url.URL{Path: "/login"}
	p := page{Title: "Log in", Nav: "login", Body: tried}
	if err := s.render(w, r, http.StatusUnauthorized, "login", p); err != nil {
		http.Error(w, "log in with the link that `workcell ui` prints", http.StatusUnauthorized)
	}
}

// Key authorizes another process of the same user to request a login link.
func (s *Server) Key() string { return s.key }

// newLink returns a login link to a process with the key.
func (s *Server) newLink(w http.ResponseWriter, r *http.Request) error {
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !equal(key, s.Key()) {
		return app.Fail(app.ExitNotFound, fmt.Errorf("%s not found", r.URL.Path), "")
	}
	_, _ = fmt.Fprint(w, s.LoginURL()) // a disconnected client needs no link
	return nil
}
