// Command chat serves a Genkit agent that has a sandbox for each conversation: files that it makes in one turn are there in
// the next, whichever HTTP request asks for it, and also when the program was restarted in between.
//
//	export GEMINI_API_KEY=…
//	go run ./examples/chat
//
//	curl -s localhost:8080/agents/chat -d '{"data": {"message": {"role": "user", "content": [{"text": "Write the first 20 primes to primes.txt"}]}}}'
//	curl -s localhost:8080/agents/chat -d '{"data": {"message": {"role": "user", "content": [{"text": "What is their sum?"}]}},
//	    "init": {"sessionId": "SESSION_ID of the first answer"}}'
//
// With -model openai/NAME it asks OpenAI, or a server like it: OPENAI_API_KEY, OPENAI_BASE_URL. Whoever knows the id of a
// conversation can continue it and reaches its files: put authentication in front of this.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
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
	"github.com/workcell-dev/workcell/session/sqlitestore"
	"github.com/workcell-dev/workcell/tools"
)

// idle is how long a conversation may pause before its sandbox is removed.
const idle = 24 * time.Hour

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
	model := flags.String("model", "googleai/gemini-2.5-flash", "googleai/NAME or openai/NAME")
	if err := flags.Parse(args); err != nil {
		return err
	}
	manager, end, err := openManager(ctx, *state, *engine)
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
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	stopped := context.AfterFunc(ctx, func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = server.Shutdown(late) // turns that are not over by then end with the manager
	})
	defer stopped()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// openManager opens the manager of the sandboxes, with records in a file. end leaves the sandboxes for the next process.
func openManager(ctx context.Context, state, engine string) (_ *session.Manager, end func() error, err error) {
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
	store, err := sqlitestore.Open(ctx, filepath.Join(state, "sandboxes.db"))
	if err != nil {
		return nil, nil, errors.Join(err, driver.Close())
	}
	instance, err := instanceOf(ctx, store)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close(), driver.Close())
	}
	manager, err := session.NewManager(driver, &session.Options{Instance: instance, Store: store, IdleTimeout: idle})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close(), driver.Close())
	}
	return manager, func() error {
		return errors.Join(manager.Detach(context.WithoutCancel(ctx)), store.Close(), driver.Close())
	}, nil
}

// instanceOf returns the id that marks the sandboxes of these records on the engine, the same after a restart.
func instanceOf(ctx context.Context, store *sqlitestore.Store) (string, error) {
	id, err := store.Instance(ctx)
	if id != "" || err != nil {
		return id, err
	}
	if err := store.SetInstance(ctx, session.NewID()); err != nil {
		return "", err
	}
	return store.Instance(ctx) // another process may have been faster
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
		return nil, fmt.Errorf("model %q is of no provider that is known here", model)
	}
	plugin := &tools.Plugin{Manager: manager}
	g := genkit.Init(ctx, genkit.WithPlugins(provider, plugin), genkit.WithExperimental())
	conversations, err := localstore.NewFileSessionStore[any](filepath.Join(state, "conversations"))
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
