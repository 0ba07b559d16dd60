package egress

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/environment"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

// registries are a Python package index and an npm registry. They count the downloaded packages.
type registries struct {
	port    string
	fetched atomic.Int64
}

// newRegistries serves the package greeting in both. It also serves packages with code for the installation: sdist,
// which is not a wheel, and script.
func newRegistries(t *testing.T) *registries {
	t.Helper()
	r := &registries{}
	r.port = server(t, r.handler(t))
	return r
}

func (r *registries) handler(t *testing.T) http.Handler {
	t.Helper()
	whl := wheel(t)
	packs := map[string][]byte{
		"greeting": packed(t, map[string]string{
			"package.json": `{"name": "greeting", "version": "1.0.0", "main": "index.js"}`,
			"index.js":     "module.exports = 'hello from a tarball'\n",
		}),
		"script": packed(t, map[string]string{
			"package.json": `{"name": "script", "version": "1.0.0", "scripts": {"postinstall": "touch ran"}}`, "index.js": "",
		}),
	}
	mux := http.NewServeMux()
	mux.Handle("/simple/", files(map[string][]byte{
		"/simple/greeting": []byte(`<a href="/greeting-1.0-py3-none-any.whl">greeting-1.0-py3-none-any.whl</a>`),
		"/simple/sdist":    []byte(`<a href="/sdist-1.0.tar.gz">sdist-1.0.tar.gz</a>`),
	}))
	mux.HandleFunc("/greeting-1.0-py3-none-any.whl", func(w http.ResponseWriter, _ *http.Request) {
		r.fetched.Add(1)
		_, _ = w.Write(whl)
	})
	mux.HandleFunc("/npm/{name}", func(w http.ResponseWriter, req *http.Request) {
		name := req.PathValue("name")
		if data, ok := packs[strings.TrimSuffix(name, ".tgz")]; ok && strings.HasSuffix(name, ".tgz") {
			r.fetched.Add(1)
			_, _ = w.Write(data)
			return
		}
		data, ok := packs[name]
		if !ok {
			http.NotFound(w, req)
			return
		}
		sum, scheme := sha512.Sum512(data), "http"
		if req.TLS != nil {
			scheme = "https"
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"name": name, "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{
			"1.0.0": map[string]any{"name": name, "version": "1.0.0", "hasInstallScript": name == "script", "dist": map[string]string{
				"tarball": scheme + "://" + req.Host + "/npm/" + name + ".tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
			}},
		}})
	})
	mux.HandleFunc("/tool", func(w http.ResponseWriter, _ *http.Request) {
		r.fetched.Add(1)
		_, _ = w.Write([]byte("#!/bin/sh\necho hello from a tool\n"))
	})
	return mux
}

// packed returns an npm package with these files.
func packed(t *testing.T, content map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	for name, text := range content {
		must(t, w.WriteHeader(&tar.Header{Name: "package/" + name, Mode: 0o644, Size: int64(len(text))}))
		_, err := w.Write([]byte(text))
		must(t, err)
	}
	must(t, w.Close())
	must(t, gz.Close())
	return b.Bytes()
}

// installing returns a desk whose sandboxes have packages of the registries installed.
func installing(t *testing.T, engine string, r *registries) *desk {
	t.Helper()
	d := newDesk(t, engine, egress.Limits{})
	builder, err := environment.New(&environment.Options{
		Dir: t.TempDir(), PipIndex: "http://pypi.test:" + r.port + "/simple", NpmRegistry: "http://npm.test:" + r.port + "/npm/",
	})
	must(t, err)
	d.options.Environments = builder
	d.m = d.manager()
	t.Cleanup(func() {
		list, err := admin.Environments(context.Background(), d.m)
		must(t, err)
		must(t, d.m.Close(context.Background()))
		for _, e := range list {
			must(t, admin.RemoveEnvironment(context.Background(), d.m, e.Name))
		}
		if list, err = admin.Environments(context.Background(), d.m); err != nil || len(list) != 0 {
			t.Errorf("left: %+v, %v", list, err)
		}
	})
	return d
}

// with opens a sandbox with an environment.
func (d *desk) with(image string, e session.Environment) *session.Session {
	d.t.Helper()
	s, err := d.tryWith(image, e)
	must(d.t, err)
	return s
}

func (d *desk) tryWith(image string, e session.Environment) (*session.Session, error) {
	s, _, err := d.m.Open(d.t.Context(), session.UserKey("u"+record.NewID()), session.Request{Image: image, Environment: e})
	return s, err
}

// TestPipEnvironment: Python packages are installed before the first command, are downloaded only once, and must be
// wheels.
func TestPipEnvironment(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		r := newRegistries(t)
		d := installing(t, engine, r)
		e := session.Environment{Pip: []string{"greeting==1.0"}}
		for range 2 {
			s := d.with(pythonImage, e)
			d.prints(s, "python3 -c 'import greeting; print(greeting.text)'", "hello from a wheel")
			// The installation leaves no allowed hosts, no files in the workspace, and no other files that it could write.
			d.prints(s, `env | grep -ci proxy; ls -A -I .workcell /workspace | wc -l; ls -A /opt/workcell | tr "\n" " "; touch /opt/workcell/x 2>&1`+" || true", "0\n0\nbin python touch: ")
		}
		if n := r.fetched.Load(); n != 1 {
			t.Errorf("the package was fetched %d times", n)
		}
		_, err := d.tryWith(pythonImage, session.Environment{Pip: []string{"sdist"}})
		var failed *session.InstallError
		if !errors.As(err, &failed) || failed.Step != "pip install" || !strings.Contains(failed.Output, "No matching distribution found for sdist") || !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("a package without wheels: %v", err)
		}
	})
}

// TestNpmEnvironment: both kinds of modules can import npm packages, and no package scripts run.
func TestNpmEnvironment(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		r := newRegistries(t)
		d := installing(t, engine, r)
		e := session.Environment{Npm: []string{"greeting@^1.0.0", "script"}}
		for range 2 {
			s := d.with(nodeImage, e)
			d.prints(s, `node -p 'require("greeting")'`, "hello from a tarball")
			d.prints(s, `echo 'import text from "greeting"; console.log(text)' > a.mjs && node a.mjs`, "hello from a tarball")
			d.prints(s, "find /opt/workcell -name ran | wc -l", "0\n")
		}
		if n := r.fetched.Load(); n != 2 {
			t.Errorf("packages were fetched %d times, want 2", n)
		}
		_, err := d.tryWith(nodeImage, session.Environment{Npm: []string{"absent"}})
		var failed *session.InstallError
		if !errors.As(err, &failed) || failed.Step != "npm install" || !strings.Contains(failed.Output, "404") {
			t.Errorf("a missing package: %v", err)
		}
	})
}

// TestSetupEnvironment: shell lines can connect only to their listed hosts, and every sandbox has the resulting files.
// Several concurrent requests of two managers for the same environment cause one installation.
func TestSetupEnvironment(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		r := newRegistries(t)
		d := installing(t, engine, r)
		image, fetch := d.netImage(), "curl -fsS -o /opt/workcell/bin/tool http://good.test:"+r.port+"/tool"
		e := session.Environment{
			Setup:   []string{fetch, "chmod +x /opt/workcell/bin/tool && echo done > /workspace/x"},
			Network: sandbox.Egress{Allow: []string{"good.test:" + r.port}},
		}
		second := *d
		second.m = d.manager()
		defer func() { must(t, second.m.Close(context.Background())) }()
		desks := []*desk{d, &second}
		var opened [4]*session.Session
		var wg sync.WaitGroup
		for i := range opened {
			wg.Go(func() {
				var err error
				if opened[i], err = desks[i%2].tryWith(image, e); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for i, s := range opened {
			if s == nil {
				continue
			}
			desks[i%2].prints(s, "tool && ls -A -I .workcell /workspace | wc -l", "hello from a tool\n0\n")
			if res, _ := desks[i%2].sh(s, fetch); res.ExitCode == 0 {
				t.Error("a command reaches a host of the setup")
			}
		}
		if n := r.fetched.Load(); n != 1 {
			t.Errorf("the tool was fetched %d times", n)
		}
		_, err := d.tryWith(image, session.Environment{Setup: []string{"true", "curl -fsS http://other.test:" + r.port + "/tool"}, Network: e.Network})
		var failed *session.InstallError
		if !errors.As(err, &failed) || failed.Step != "setup[1]" || len(failed.Refused) != 1 || !strings.Contains(failed.Refused[0].Rule, "network.allow") {
			t.Errorf("a host that is not named: %v", err)
		}
	})
}

// TestInstallationThatIsLeft: an installation ends when all its callers canceled. Every desk checks for leftovers.
func TestInstallationThatIsLeft(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		r := newRegistries(t)
		d := installing(t, engine, r)
		asked := make(chan struct{})
		port := server(t, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			close(asked)
			<-req.Context().Done()
		}))
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-asked
			cancel()
		}()
		_, _, err := d.m.Open(ctx, session.UserKey("u"+record.NewID()), session.Request{Image: d.netImage(), Environment: session.Environment{
			Setup: []string{"touch /opt/workcell/half", "curl -sS http://good.test:" + port}, Network: sandbox.Egress{Allow: []string{"good.test:" + port}},
		}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Open: %v", err)
		}
		if list, err := admin.Environments(t.Context(), d.m); err != nil || len(list) != 0 {
			t.Errorf("environments: %+v, %v", list, err)
		}
	})
}

// TestAgentWithPackages: programs of an agent in compute mode find the packages listed in the agent's file. The model
// gets the list of packages, and the reason why other packages are not available.
func TestAgentWithPackages(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		r := newRegistries(t)
		d := installing(t, engine, r)
		file := "---\nmodel: test/m\nsandbox: {image: %q, pip_packages: [%q]}\n---\nGo on.\n"
		m := d.agents(map[string]string{
			"good": fmt.Sprintf(file, pythonImage, "greeting>=1.0"), "bad": fmt.Sprintf(file, pythonImage, "greeting>=2.0"),
		}, "import greeting; print(greeting.text)")
		_, err := m.agents["good"].Run(t.Context(), nil, nil)
		must(t, err)
		if m.outputs[0]["stdout"] != "hello from a wheel\n" ||
			!strings.Contains(m.offered, "Installed Python packages: greeting>=1.0.") {
			t.Errorf("%v, offered as %s", m.outputs, m.offered)
		}
		_, err = m.agents["bad"].Run(t.Context(), nil, nil)
		var failed *session.InstallError
		if !errors.As(err, &failed) || !strings.Contains(err.Error(), "No matching distribution found for greeting>=2.0") {
			t.Errorf("an agent with missing packages: %v", err)
		}
		text, err := json.Marshal(m.outputs[1]["error"])
		must(t, err)
		for _, want := range []string{`"code":"invalid_argument"`, "pip install failed", "pip_packages"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("no %s in %s", want, text)
			}
		}
	})
}
