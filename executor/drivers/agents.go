package drivers

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
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

// Of returns the agent for an executor's command. Only acp and custom use argv, and only custom uses events.
func Of(command string, argv []string, events string) Agent {
	switch command {
	case "acp":
		return acpAgent(argv)
	case "custom":
		return Agent{Driver: Custom{Argv: argv, JSON: events == "json", Like: known(events).Driver}}
	}
	return known(command)
}

// acpAgent returns the agent for a command line that uses the Agent Client Protocol. If a launcher or an adapter starts
// a known CLI, the agent has the settings of the CLI but no image, because the CLI's image may lack that program.
func acpAgent(argv []string) Agent {
	cli := known(acpCLI(argv))
	d := ACP{Argv: argv, Settings: cli.Driver}
	if cli.Driver == nil || path.Base(argv[0]) != cli.Name {
		return Agent{Driver: d, WholeModel: cli.WholeModel}
	}
	cli.Driver = d
	return cli
}

// launchers are programs and subcommands that start the program in a later argument.
var launchers = []string{"npx", "npm", "pnpm", "yarn", "bunx", "bun", "node", "deno", "env", "exec", "dlx", "x", "run"}

var (
	envVar = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
	// acpProgram matches the program or package of a known CLI, for example @google/gemini-cli@0.61.0.
	acpProgram = regexp.MustCompile(`^(?:.*/)?(?:(gemini|opencode)(?:-cli|-ai)?|(claude|codex)(?:-code|-agent)?-acp)` +
		`(?:@.*|(?:/.*)?\.js)?$`)
)

// acpCLI returns the name of the known CLI started by a command line, for example "npx -y @google/gemini-cli --acp". It
// returns an empty string for other programs.
func acpCLI(argv []string) string {
	for _, arg := range argv {
		if slices.Contains(launchers, path.Base(arg)) || strings.HasPrefix(arg, "-") || envVar.MatchString(arg) {
			continue
		}
		if m := acpProgram.FindStringSubmatch(arg); m != nil {
			return m[1] + m[2] // only one of the groups matches
		}
		return ""
	}
	return ""
}

// known returns the agent with a driver in this package. For other names, it returns the zero Agent.
func known(name string) Agent {
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
type Versions struct{ checked sync.Map }

// Differs returns a warning if the agent's version in a sandbox differs from the tested version of the driver.
// Otherwise it returns an empty string. It checks an image once, and again after a failed check. It does not check an
// agent's own image, whose tag is the version, except on the local backend, which has no images.
func (v *Versions) Differs(ctx context.Context, s *session.Session, a Agent) string {
	info := s.Info()
	if a.Name == "" || info.Image == a.Image && info.Backend != "local" {
		return ""
	}
	key := a.Name + " " + info.Backend + " " + info.Image
	if _, known := v.checked.LoadOrStore(key, true); known {
		return ""
	}
	got, err := version(ctx, s, a.Name)
	if err != nil {
		v.checked.Delete(key) // the next call tries again
	}
	if got == "" || got == a.Version {
		return ""
	}
	return fmt.Sprintf("%s has version %s; its driver was tested with version %s", a.Name, got, a.Version)
}

// versionTime is the maximum time to get a version. It is generous, because a CLI on a busy machine needs many seconds
// to start.
const versionTime = time.Minute

// versionNumber matches a version in the output of --version, for example 2.1.3 in v2.1.3.
var versionNumber = regexp.MustCompile(`\d+\.\d+(\.\d+)?(-[0-9A-Za-z.]{1,30})?\b`)

// version returns the version of a program in a sandbox from the output of --version. It is empty if the program
// prints no version. The run reports a missing program.
func version(ctx context.Context, s *session.Session, program string) (string, error) {
	res, err := s.Exec(ctx, sandbox.ExecRequest{
		Argv: []string{program, "--version"}, Timeout: versionTime, TailBytes: 4 << 10, HeadBytes: 4 << 10,
	})
	if err == nil && res.Status == sandbox.ExecTimedOut {
		err = backend.ErrTimeout
	}
	if err != nil || res.ExitCode != 0 {
		return "", err
	}
	return versionNumber.FindString(string(res.Stdout.Bytes())), nil
}
