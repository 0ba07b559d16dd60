// Command chat serves a Genkit agent with one sandbox for each conversation. A turn can use the files of earlier turns,
// even if the program restarts in between.
//
//	export GEMINI_API_KEY=…
//	go run ./examples/chat
//
//	curl -s localhost:8080/agents/chat -d '{"data": {"message": {"role": "user", "content": [{"text": "Write the first 20 primes to primes.txt"}]}}}'
//	curl -s localhost:8080/agents/chat -d '{"data": {"message": {"role": "user", "content": [{"text": "What is their sum?"}]}},
//	    "init": {"sessionId": "SESSION_ID of the first answer"}}'
//
// To use OpenAI or a compatible server, set OPENAI_API_KEY and OPENAI_BASE_URL, and pass -model openai/NAME.
//
// By default, the server has one user and accepts connections only from this host. To serve several users, pass
// -tokens FILE with a line `TOKEN NAME` for each user. Each request then requires a token (Authorization: Bearer TOKEN).
// Users cannot access conversations and files of other users, even with their IDs. On the internet, add TLS and a login.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/firebase/genkit/go/ai"
	aix "github.com/firebase/genkit/go/ai/exp"
	"github.com/firebase/genkit/go/ai/exp/localstore"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"
	genkitx "github.com/firebase/genkit/go/genkit/exp"
	"github.com/firebase/genkit/go/plugins/compat_oai/openai"
	"github.com/firebase/genkit/go/plugins/googlegenai"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/sqlite"
	"github.com/workcell-dev/workcell/tools"
)

const (
	// idle is the idle time after which a conversation's sandbox is removed.
	idle = 24 * time.Hour
	// maxBody is the maximum size of a request in bytes.
	maxBody = 1 << 20
	// bodyTimeout is the maximum time to receive a request body.
	bodyTimeout = 30 * time.Second
	// cancelTimeout is the maximum time for canceled turns to end.
	cancelTimeout = 5 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "chat:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("chat", flag.ContinueOnError)
	addr := flags.String("addr", "127.0.0.1:8080", "address to serve on")
	state := flags.String("state", ".chat", "directory for conversations and records of sandboxes")
	engine := flags.String("backend", "docker", "docker or local")
	image := flags.String("image", "", "image of sandboxes, for example from a mirror; default python:3.11-slim")
	grace := flags.Duration("grace", 10*time.Second, "how long turns may take to end after a signal")
	model := flags.String("model", "googleai/gemini-2.5-flash", "googleai/NAME or openai/NAME")
	tokens := flags.String("tokens", "", "file with a line `TOKEN NAME` for each user; without one only this machine is served")
	if err := flags.Parse(args); err != nil {
		return err
	}
	users, err := readUsers(*tokens)
	if err != nil {
		return err
	}
	if at, err := net.ResolveTCPAddr("tcp", *addr); err != nil || users == nil && !at.IP.IsLoopback() {
		return errors.Join(fmt.Errorf("-addr %s: other hosts require -tokens", *addr), err)
	}
	manager, end, err := openManager(ctx, *state, *engine, *image)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	handler, err := newHandler(ctx, manager, *state, *model)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	fmt.Printf("serving http://%s/agents/chat\n", listener.Addr())
	return serve(ctx, listener, authenticated(users, handler), *grace)
}

// serve serves until ctx is done. Running turns then get the time grace to end, and are canceled afterwards. If serve
// returns without an error, no turn is running.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, grace time.Duration) error {
	turns, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	server := &http.Server{
		Handler:           bounded(handler),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute, // no timeout for answers, because a turn may take any time
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return turns },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		// Includes Genkit's handlers; a second signal ends the program immediately.
		signal.Reset(os.Interrupt, syscall.SIGTERM)
	}
	shutdown := func(wait time.Duration) error {
		limit, done := context.WithTimeout(context.WithoutCancel(ctx), wait)
		defer done()
		return server.Shutdown(limit)
	}
	if shutdown(grace) == nil {
		return nil
	}
	cancel()
	if err := shutdown(cancelTimeout); err != nil {
		return errors.Join(fmt.Errorf("turns are still running: %w", err), server.Close())
	}
	return nil
}

// readUsers reads the names of users by the hash of their tokens. The hash keeps the lookup time independent of the
// number of correct characters. Without a file, it returns no users.
func readUsers(file string) (map[[sha256.Size]byte]string, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	users := map[[sha256.Size]byte]string{}
	for line := range strings.Lines(string(text)) {
		token, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			return nil, fmt.Errorf("%s: each line must be `TOKEN NAME`", file)
		}
		users[sha256.Sum256([]byte(token))] = strings.TrimSpace(name)
	}
	return users, nil
}

// onlyUser is the user of all requests if no tokens are configured.
const onlyUser = "local"

// fromHost refuses requests that a browser on this host sends for web pages: from another site, or to another name of
// this host.
func fromHost(next http.Handler) http.Handler {
	next = http.NewCrossOriginProtection().Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := url.URL{Host: r.Host}
		if name := at.Hostname(); name != "localhost" && net.ParseIP(name) == nil {
			http.Error(w, "unknown host", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authenticated serves only requests with a valid token, as the user of the token. Without users, it serves requests of
// programs on this host.
func authenticated(users map[[sha256.Size]byte]string, next http.Handler) http.Handler {
	if users == nil {
		next = fromHost(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := onlyUser
		if users != nil {
			token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			var known bool
			if user, known = users[sha256.Sum256([]byte(token))]; !known {
				w.Header().Set("WWW-Authenticate", "Bearer")
				http.Error(w, "who is it?", http.StatusUnauthorized)
				return
			}
		}
		next.ServeHTTP(w, r.WithContext(session.WithUser(r.Context(), user))) // the sandbox belongs to this user
	})
}

// directoryOf returns the directory for the conversations of a request's user.
func directoryOf(ctx context.Context) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(session.UserFromContext(ctx))))
}

// bounded reads each request, with limits of size and time, before it is handled.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		err := control.SetReadDeadline(time.Now().Add(bodyTimeout))
		var body []byte
		if err == nil {
			body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		}
		if err == nil {
			err = control.SetReadDeadline(time.Time{}) // the connection is still monitored while the turn runs
		}
		switch tooLarge := (*http.MaxBytesError)(nil); {
		case errors.As(err, &tooLarge):
			http.Error(w, tooLarge.Error(), http.StatusRequestEntityTooLarge)
			return
		case err != nil:
			http.Error(w, "the request cannot be read", http.StatusBadRequest)
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body)) // Genkit reads only known lengths
		next.ServeHTTP(w, r)
	})
}

// openManager opens the manager of the sandboxes, with records in a file. end leaves the sandboxes for the next
// process.
func openManager(ctx context.Context, state, engine, image string) (_ *session.Manager, end func() error, err error) {
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, nil, err
	}
	var driver backend.SandboxBackend
	switch engine {
	case "docker":
		driver, err = docker.New(ctx, &docker.Options{Host: os.Getenv("DOCKER_HOST")})
	case "local":
		driver, err = local.New(ctx, nil)
	default:
		err = fmt.Errorf("unknown backend %q", engine)
	}
	if err != nil {
		return nil, nil, err
	}
	store, err := sqlite.Open(ctx, filepath.Join(state, "sandboxes.db"))
	if err != nil {
		return nil, nil, errors.Join(err, driver.Close())
	}
	instance, err := instanceOf(ctx, store)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close(), driver.Close())
	}
	opts := &session.Options{Instance: instance, Store: store, IdleTimeout: idle}
	if image != "" {
		opts.Defaults.Images = map[string]string{string(frontmatter.RuntimePython): image}
	}
	manager, err := session.NewManager(driver, opts)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close(), driver.Close())
	}
	return manager, func() error {
		return errors.Join(manager.Detach(context.WithoutCancel(ctx)), store.Close(), driver.Close())
	}, nil
}

// instanceOf returns the instance id for these records. It stays the same after a restart.
func instanceOf(ctx context.Context, store *sqlite.Store) (string, error) {
	id, err := store.Instance(ctx)
	if id != "" || err != nil {
		return id, err
	}
	if err := store.SetInstance(ctx, record.NewID()); err != nil {
		return "", err
	}
	return store.Instance(ctx) // another process may have stored its id first
}

// newHandler defines the agent and serves it.
func newHandler(ctx context.Context, manager *session.Manager, state, model string) (http.Handler, error) {
	var provider api.Plugin
	switch name, _, _ := strings.Cut(model, "/"); name {
	case "googleai":
		provider = &googlegenai.GoogleAI{}
	case "openai":
		provider = &openai.OpenAI{}
	default:
		return nil, fmt.Errorf("unknown model provider in %q", model)
	}
	plugin := &tools.Plugin{Manager: manager}
	g := genkit.Init(ctx, genkit.WithPlugins(provider, plugin), genkit.WithExperimental())
	conversations, err := localstore.NewFileSessionStore[any](filepath.Join(state, "conversations"), localstore.WithSnapshotPathPrefix(directoryOf))
	if err != nil {
		return nil, err
	}
	agent := genkitx.DefineAgent(g, "chat", aix.InlinePrompt{
		ai.WithModelName(model),
		ai.WithSystem("You are a helpful assistant with a sandbox. Files that you make in it stay for the whole conversation."),
		ai.WithUse(plugin.Use(tools.Sandbox{Mode: frontmatter.ModeCode, Runtime: frontmatter.RuntimePython})),
		ai.WithMaxTurns(frontmatter.DefaultMaxTurns),
	}, aix.WithSessionStore(conversations))
	mux := http.NewServeMux()
	for _, route := range genkitx.AgentRoutes(agent) {
		mux.HandleFunc(route.Pattern(), route.Handler())
	}
	return mux, nil
}
