package egress

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	"net/http"
	"path"
	"testing"

	"github.com/workcell-dev/workcell/gateway/egress"
)

// files serves files by path.
func files(list map[string][]byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := list[path.Clean(r.URL.Path)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(body)
	})
}

// zipped returns an archive of files with names and texts.
func zipped(t *testing.T, files ...[2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		w, err := z.Create(f[0])
		must(t, err)
		_, err = w.Write([]byte(f[1]))
		must(t, err)
	}
	must(t, z.Close())
	return b.Bytes()
}

// wheel returns a Python package.
func wheel(t *testing.T) []byte {
	t.Helper()
	const info = "greeting-1.0.dist-info/"
	return zipped(t,
		[2]string{"greeting.py", "text = 'hello from a wheel'\n"},
		[2]string{info + "METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n"},
		[2]string{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		[2]string{info + "RECORD", "greeting.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
	)
}

// TestPip: pip installs from an allowed index over TLS, and shows why another index is refused.
func TestPip(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		d, ca := newDesk(t, engine, egress.Limits{}), newAuthority(t)
		port := ca.server("pypi.test", new(registries).handler(t))
		s := d.open(pythonImage, "pypi.test:"+port)
		ca.trust(s)
		pip := "python3 -m pip --cert ca.pem --retries 0 --disable-pip-version-check install --no-cache-dir --target lib greeting --index-url https://"
		d.prints(s, pip+"pypi.test:"+port+"/simple && PYTHONPATH=lib python3 -c 'import greeting; print(greeting.text)'", "hello from a wheel")
		d.fails(s, pip+"other.test:"+port+"/simple", "No matching distribution", "network.allow")
	})
}

// TestNpm: npm installs from a registry over TLS.
func TestNpm(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		d, ca := newDesk(t, engine, egress.Limits{}), newAuthority(t)
		port := ca.server("npm.test", new(registries).handler(t))
		s := d.open(nodeImage, "npm.test:"+port)
		ca.trust(s)
		npm := "npm install --cafile ca.pem --fetch-retries 0 --no-audit --no-fund --no-update-notifier --cache /tmp/npm greeting --registry https://"
		d.prints(s, npm+"npm.test:"+port+`/npm/ && node -p 'require("greeting")'`, "hello from a tarball")
		d.fails(s, "rm -rf node_modules package*.json; "+npm+"other.test:"+port+"/npm/", "403", "network.allow")
	})
}

// TestGit: git clones a repository over TLS.
func TestGit(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		d, ca := newDesk(t, engine, egress.Limits{}), newAuthority(t)
		dir := t.TempDir()
		bareRepository(t, dir)
		port := ca.server("git.test", http.FileServer(http.Dir(dir)))
		s := d.open(netImage, "git.test:"+port)
		ca.trust(s)
		git := "GIT_SSL_CAINFO=$PWD/ca.pem git clone -q https://"
		d.prints(s, git+"git.test:"+port+"/repo.git copy && cat copy/README", "hello from a repository")
		d.fails(s, git+"other.test:"+port+"/repo.git other", "403", "network.allow")
	})
}

// TestApt: apt reads the lists of a repository and downloads a package.
func TestApt(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		d := newDesk(t, engine, egress.Limits{})
		deb := []byte("hello from a package")
		packages := fmt.Appendf(nil, "Package: greeting\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.org>\nDescription: greets\nFilename: ./greeting.deb\nSize: %d\nSHA256: %x\n\n", len(deb), sha256.Sum256(deb))
		release := fmt.Appendf(nil, "Suite: stable\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n %x %d Packages\n", sha256.Sum256(packages), len(packages))
		port := server(t, files(map[string][]byte{"/Release": release, "/Packages": packages, "/greeting.deb": deb}))
		s := d.open(netImage, "apt.test:"+port)
		begin := "mkdir -p a/lists/partial a/cache/archives/partial a/etc && : > a/status && echo 'deb [trusted=yes] http://"
		apt := "apt-get -q -o Dir::State=$PWD/a -o Dir::State::status=$PWD/a/status -o Dir::Cache=$PWD/a/cache -o Dir::Etc=$PWD/a/etc -o Acquire::Retries=0 -o Acquire::Languages=none "
		end := ":" + port + " ./' > a/etc/sources.list && " + apt + "update -o APT::Update::Error-Mode=any && " + apt + "download greeting && cat greeting_1.0_all.deb"
		d.prints(s, begin+"apt.test"+end, string(deb))
		d.fails(s, "rm -rf a *.deb; "+begin+"other.test"+end, "403", "network.allow")
	})
}

// TestOperator: an operator can allow additional hosts for a running sandbox, and no output contains the hosts'
// addresses.
func TestOperator(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		d := newDesk(t, engine, egress.Limits{Bytes: 1 << 20})
		port := server(t, files(map[string][]byte{"/canary-path": []byte("hello"), "/large": make([]byte, 4<<20)}))
		s := d.open(netImage, "good.test:"+port)
		d.fails(s, "curl -sS --fail http://more.test:"+port+"/canary-path", "403", "network.allow")
		must(t, egress.Allow(d.grants, s.ID(), "more.test:"+port))
		d.prints(s, "curl -sS http://more.test:"+port+"/canary-path", "hello")
		var connects int
		for _, span := range d.ended(2) {
			if span.Name == "egress.Connect" {
				connects++
			}
			if bytes.Contains(fmt.Append(nil, span), []byte("canary-path")) {
				t.Errorf("the span %s holds a path", span.Name)
			}
		}
		if connects != 2 {
			t.Errorf("%d spans of connections, want 2", connects)
		}
		if log := d.log.String(); bytes.Contains([]byte(log), []byte("canary-path")) || !bytes.Contains([]byte(log), []byte("decision=denied")) || !bytes.Contains([]byte(log), []byte("decision=allowed")) {
			t.Errorf("log: %s", log)
		}
		d.fails(s, "curl -sS --fail http://good.test:"+port+"/large -o large", "", "limits.bytes")
		d.fails(s, "curl -sS --fail http://good.test:"+port+"/canary-path", "403", "limits.bytes")
	})
}
