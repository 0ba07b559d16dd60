package drivers

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Agent describes a coding agent for an executor.
type Agent struct {
	Driver     executor.Driver // nil for an unknown command
	Name       string          // program in Image and Version; empty for an arbitrary program
	Image      string          // image with the program; empty if no image exists
	Version    string          // version with which the driver was tested
	WholeModel bool            // model names include the provider
}

// Of returns the agent for an executor's command. argv and events apply to the commands acp and custom.
func Of(command string, argv []string, events string) Agent {
	switch command {
	case "acp":
		a, d := Agent{}, ACP{Argv: argv}
		if m := speaks.FindStringSubmatch(strings.Join(argv, "\n")); m != nil {
			a = named(m[1] + m[2])
			d.Settings = a.Driver
			if path.Base(argv[0]) != a.Name { // the image may not contain this program
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

// speaks matches the command line of a known agent for the Agent Client Protocol, with one argument per line, for
// example "npx -y @google/gemini-cli@0.61.0 --acp".
var speaks = regexp.MustCompile(`^(?:(?:.*/)?(?:npx|npm|pnpm|yarn|bunx|bun|node|deno|env|exec|dlx|x|run|-.*|[^/]+=.*)\n)*` +
	`(?:.*/)?(?:(gemini|opencode)(?:-cli|-ai)?|(claude|codex)(?:-code|-agent)?-acp)(?:@.*|(?:/.*)?\.js)?(?:\n|$)`)

// named returns the known coding agent with this name.
func named(name string) Agent {
	d := Named(name)
	if d == nil {
		return Agent{}
	}
	return Agent{
		Driver: d, Name: name, Image: "workcell/" + name + ":" + d.Version, Version: d.Version,
		WholeModel: name == "opencode",
	}
}

// Versions remembers the images whose agent version was checked. The zero value is ready to use. It is safe for
// concurrent use.
type Versions struct{ asked sync.Map }

// Differs returns a warning if the agent's version in a sandbox differs from the tested version of the driver. It warns
// once per image. It does not check an agent's own image, whose tag is the version, except on the local backend, which
// has no images.
func (v *Versions) Differs(ctx context.Context, s *session.Session, a Agent) string {
	info := s.Info()
	if a.Name == "" || info.Image == a.Image && info.Backend != "local" {
		return ""
	}
	if _, known := v.asked.LoadOrStore(a.Name+" "+info.Backend+" "+info.Image, true); known {
		return ""
	}
	got := version(ctx, s, a.Name)
	if got == "" || got == a.Version {
		return ""
	}
	return fmt.Sprintf("%s has version %s, its driver was tested with %s", a.Name, got, a.Version)
}

// versionTime is the maximum time to get a version. One CLI needs some seconds to start.
const versionTime = time.Minute

// version returns the version of a program in a sandbox from the output of --version. It is empty if the program is
// missing or prints no version. The run reports a missing program.
func version(ctx context.Context, s *session.Session, program string) string {
	res, err := s.Exec(ctx, sandbox.ExecRequest{
		Argv: []string{program, "--version"}, Timeout: versionTime, TailBytes: 4 << 10, HeadBytes: 4 << 10,
	})
	if err != nil || res.ExitCode != 0 {
		return ""
	}
	return regexp.MustCompile(`\b\d+\.\d+(\.\d+)?(-[0-9A-Za-z.]{1,30})?\b`).FindString(string(res.Stdout.Bytes()))
}
