package egress

import (
	"testing"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/cache"
	"github.com/workcell-dev/workcell/session/record"
)

// caching returns a desk whose sandboxes have caches.
func caching(t *testing.T, engine string) (*desk, *cache.Store) {
	t.Helper()
	d := newDesk(t, engine, egress.Limits{})
	store, err := cache.Open(t.TempDir())
	must(t, err)
	d.options.Caches = store.Caches()
	d.m = enginetest.Manager(t, d.b, &d.options)
	return d, store
}

// fill fills a cache in a sandbox with one allowed host.
func (d *desk) fill(store *cache.Store, name, image, host string, env map[string]string, argv ...string) {
	d.t.Helper()
	var out buffertest.Buffer
	in, err := store.Fill(d.t.Context(), d.m, cache.FillOptions{
		Name: name, Argv: argv, Stdout: &out, Stderr: &out,
		Request: session.Request{Image: image, Env: env, Egress: sandbox.Egress{Allow: []string{host}}},
	})
	if err != nil || in.Files == 0 {
		d.t.Fatalf("%s: %+v, %v: %s", name, in, err, out.String())
	}
}

// reading opens a sandbox without a network and with a cache.
func (d *desk) reading(image, name string, env map[string]string) *session.Session {
	d.t.Helper()
	s, _, err := d.m.Open(d.t.Context(), session.UserKey("u"+record.NewID()), session.Request{Image: image, Caches: []string{name}, Env: env})
	must(d.t, err)
	return s
}

// TestPipCache: pip installs packages from the cache instead of downloading them, and builds nothing.
func TestPipCache(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		r := newRegistries(t)
		d, store := caching(t, engine)
		env := map[string]string{"PIP_INDEX_URL": "http://pypi.test:" + r.port + "/simple", "PIP_TRUSTED_HOST": "pypi.test", "PIP_RETRIES": "0"}
		d.names.set("pypi.test", addrs("127.0.0.1"))
		d.fill(store, "pip", pythonImage, "pypi.test:"+r.port, env, "pip", "download", "greeting")
		for range 2 {
			s := d.reading(pythonImage, "pip", nil)
			d.prints(s, "pip install --no-index --quiet --target lib greeting && PYTHONPATH=lib python3 -c 'import greeting; print(greeting.text)'", "hello from a wheel")
			// The same with an unreachable index.
			d.prints(s, "PIP_RETRIES=0 pip install --quiet --target other greeting && PYTHONPATH=other python3 -c 'import greeting; print(greeting.text)'", "hello from a wheel")
		}
		if n := r.fetched.Load(); n != 1 {
			t.Errorf("the package was fetched %d times", n)
		}
	})
}

// TestNpmCache: npm installs packages from the cache, and writes to the cache stay in the sandbox.
func TestNpmCache(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		r := newRegistries(t)
		d, store := caching(t, engine)
		host := "npm.test:" + r.port
		env := map[string]string{"npm_config_registry": "http://" + host + "/npm/", "npm_config_update_notifier": "false", "npm_config_audit": "false", "npm_config_fund": "false"}
		d.names.set("npm.test", addrs("127.0.0.1"))
		d.fill(store, "npm", nodeImage, host, env, "npm", "install", "greeting")
		had, err := store.Info("npm")
		must(t, err)
		s := d.reading(nodeImage, "npm", env)
		d.prints(s, `npm install --silent greeting && node -p 'require("greeting")'`, "hello from a tarball")
		// Try to poison the cache: neither links nor copies lead back to the original.
		d.prints(s, `cd ~/.npm/_cacache && find . -type l | head -1 | grep -c . && for f in $(find . -type f -o -type l); do (echo evil >$f) 2>/dev/null; done; rm -rf ~/.npm; echo done`, "1\ndone")
		d.prints(d.reading(nodeImage, "npm", env), `npm install --silent greeting && node -p 'require("greeting")'`, "hello from a tarball")
		// An uncached package is downloaded, in addition to the cached packages.
		online, _, err := d.m.Open(t.Context(), session.UserKey("u"+record.NewID()), session.Request{Image: nodeImage, Caches: []string{"npm"}, Env: env, Egress: sandbox.Egress{Allow: []string{host}}})
		must(t, err)
		d.prints(online, `npm install --silent greeting script && node -p 'require("greeting")'`, "hello from a tarball")
		if n := r.fetched.Load(); n != 2 {
			t.Errorf("packages were fetched %d times, want greeting once and script once", n)
		}
		if now, err := store.Info("npm"); err != nil || now != had {
			t.Errorf("the cache was %+v, is %+v, %v", had, now, err)
		}
		d.fill(store, "npm", nodeImage, host, env, "npm", "install", "script") // in addition to the existing files
		d.prints(d.reading(nodeImage, "npm", env), `npm install --silent greeting script && node -p 'require("greeting")'`, "hello from a tarball")
	})
}

// TestGoCache: the go command finds modules in the cache. Only the local backend has a go command, which is the host's.
func TestGoCache(t *testing.T) {
	t.Parallel()
	const at = "hello.test/greet@v1.0.0/"
	module := zipped(t, [2]string{at + "go.mod", "module hello.test/greet\n"},
		[2]string{at + "greet.go", "package greet\n\nconst Text = \"hello from a module\"\n"})
	port := server(t, files(map[string][]byte{
		"/hello.test/greet/@v/list": []byte("v1.0.0\n"), "/hello.test/greet/@v/v1.0.0.info": []byte(`{"Version": "v1.0.0"}`),
		"/hello.test/greet/@v/v1.0.0.mod": []byte("module hello.test/greet\n"), "/hello.test/greet/@v/v1.0.0.zip": module,
	}))
	d, store := caching(t, "local")
	d.names.set("proxy.test", addrs("127.0.0.1"))
	env := map[string]string{"GOPROXY": "http://proxy.test:" + port, "GOSUMDB": "off", "PATH": "/usr/local/go/bin:/usr/bin:/bin"}
	const begin = "go mod init x && go get hello.test/greet@v1.0.0"
	d.fill(store, "go", "host", "proxy.test:"+port, env, "sh", "-c", begin)
	delete(env, "GOPROXY")
	d.prints(d.reading("host", "go", env), begin+` && printf 'package main\n\nimport "hello.test/greet"\n\nfunc main() { println(greet.Text) }\n' >main.go && go run .`, "hello from a module")
}
