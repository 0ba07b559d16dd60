package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// authority is a certificate authority for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "egress tests"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{t, cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// server starts an HTTPS server whose certificate has a name.
func (a *authority) server(name string, h http.Handler) (port string) {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	must(a.t, err)
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // discard expected errors of clients
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.StartTLS()
	a.t.Cleanup(s.Close)
	return portOf(s.Listener.Addr())
}

// trust writes the authority's certificate to ca.pem in a sandbox.
func (a *authority) trust(s *session.Session) {
	a.t.Helper()
	_, err := s.WriteFile(a.t.Context(), "ca.pem", strings.NewReader(a.pem), sandbox.WriteFileOptions{})
	must(a.t, err)
}

// TestServerName: TLS connections lead only to the requested host, even if the client or the server uses another name.
func TestServerName(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		d, ca := newDesk(t, engine, egress.Limits{}), newAuthority(t)
		port, lying := ca.server("good.test", says("hello by TLS")), ca.server("evil.test", says("hello from a liar"))
		s := d.open(netImage, "good.test:"+port, "good.test:"+lying)
		ca.trust(s)
		curl := "curl -sS --cacert ca.pem "
		d.prints(s, curl+"https://good.test:"+port, "hello by TLS")
		d.fails(s, curl+"https://evil.test:"+port, "403", "network.allow")
		// The client lies. It requests one host from the proxy, and uses another TLS server name or none.
		d.fails(s, curl+"--connect-to evil.test:"+port+":good.test:"+port+" https://evil.test:"+port, "", "tls: server name")
		d.fails(s, curl+"--connect-to 192.0.2.1:"+port+":good.test:"+port+" https://192.0.2.1:"+port, "", "tls: no server name")
		// The server lies. The client must detect this, as without a proxy.
		res, out := d.sh(s, curl+"https://good.test:"+lying)
		if res.ExitCode != 60 || len(res.Refused) != 0 { // CURLE_PEER_FAILED_VERIFICATION
			t.Errorf("exit code %d, refused %v: %s", res.ExitCode, res.Refused, out)
		}
	})
}

// TestRebinding: a name whose addresses change, or with additional addresses, does not lead to forbidden addresses.
func TestRebinding(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		d := newDesk(t, engine, egress.Limits{})
		port := server(t, says("hello from outside"))
		ln, err := net.Listen("tcp", "127.0.1.1:"+port) // a loopback address not allowed by the operator
		must(t, err)
		secret := httptest.NewUnstartedServer(says("secret"))
		secret.Listener = ln
		secret.Start()
		t.Cleanup(secret.Close)
		good, bad := addrs("127.0.0.1"), addrs("127.0.1.1")
		d.names.set("rebind.test", good, bad)
		d.names.set("both.test", addrs("127.0.0.1", "127.0.1.1"))
		d.names.set("meta.test", addrs("169.254.169.254"))
		s := d.open(netImage, "rebind.test:"+port, "both.test:"+port, "meta.test:"+port)
		d.prints(s, "curl -sS http://rebind.test:"+port, "hello from outside")
		if n := d.names.questions("rebind.test"); n != 1 {
			t.Errorf("the name was resolved %d times for one connection", n)
		}
		for name, rule := range map[string]string{"rebind": "address: loopback", "both": "address: loopback", "meta": "address: link-local"} {
			d.fails(s, "curl -sS --fail-with-body http://"+name+".test:"+port, "is not allowed", rule)
		}
	})
}
