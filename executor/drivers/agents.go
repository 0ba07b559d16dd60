package drivers

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/session"
)

// Agent is what an executor runs.
type Agent struct {
	Driver     executor.Driver // nil of a command that is not known
	Name       string          // of the program that Image and Version are about; empty where it is any program
	Image      string          // that has it, empty where there is none
	Version    string          // that the driver was tried with
	WholeModel bool            // it is asked for a model with its provider
}

// Of returns what a command of an executor runs; argv and events belong to commands acp and custom.
func Of(command string, argv []string, events string) Agent {
	switch command {
	case "acp":
		a, d := Agent{}, ACP{Argv: argv}
		if m := speaks.FindStringSubmatch(strings.Join(argv, "\n")); m != nil {
			a = named(m[1] + m[2])
			d.Settings = a.Driver
			if path.Base(argv[0]) != a.Name { // its image need not have this program
				a = Agent{WholeModel: a.WholeModel}
			}
		}
		a.Driver = d
		return a
	case "custom":
		return Agent{Driver: Custom{Argv: argv, JSON: events == "json", Like: named(events).Driver}}
	}
	return named(command)
}

// speaks matches the command line, an argument per line, of a known agent that speaks the Agent Client Protocol, for
// example "npx -y @google/gemini-cli@0.61.0 --acp".
var speaks = regexp.MustCompile(`^(?:(?:.*/)?(?:npx|npm|pnpm|yarn|bunx|bun|node|deno|env|exec|dlx|x|run|-.*|[^/]+=.*)\n)*` +
	`(?:.*/)?(?:(gemini|opencode)(?:-cli|-ai)?|(claude|codex)(?:-code|-agent)?-acp)(?:@.*|(?:/.*)?\.js)?(?:\n|$)`)

// named returns a coding agent that is known by name.
func named(name string) Agent {
	d := Named(name)
	if d == nil {
		return Agent{}
	}
	return Agent{
		Driver: d, Name: name, Image: "workcell/" + name + ":" + d.Version, Version: d.Version, WholeModel: name == "opencode",
	}
}

// Versions remembers which images were asked for the version of an agent. Its zero value is ready for use, by several
// at once.
type Versions struct{ asked sync.Map }

// Differs returns what is to be said where a sandbox has another version of a coding agent than its driver was tried
// with, once for each image. An agent's own image is named for its version, and is not asked, but where sandboxes have
// no images.
func (v *Versions) Differs(ctx context.Context, s *session.Session, a Agent) string {
	info := s.Info()
	if a.Name == "" || info.Image == a.Image && info.Backend != "local" {
		return ""
	}
	if _, known := v.asked.LoadOrStore(a.Name+" "+info.Backend+" "+info.Image, true); known {
		return ""
	}
	got, err := executor.Version(ctx, s, a.Name)
	if err != nil || got == a.Version { // what is wrong with it the run will say
		return ""
	}
	return fmt.Sprintf("%s has version %s, its driver was tested with %s", a.Name, got, a.Version)
}
