package runcmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/models"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/executor/skill"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/hosttools/mcpsource"
	"github.com/workcell-dev/workcell/gateway/services"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// Severities of problems. A flag or variable of the run command can fix a warning.
const (
	severityError   = "error"
	severityWarning = "warning"
)

// problem is a problem of a file.
type problem struct {
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
}

// line returns "file:line:column: message; hint", which editors understand.
func (p problem) line() string {
	e := frontmatter.Error{File: p.File, Line: p.Line, Column: p.Column, Message: p.Message, Hint: p.Hint}
	if p.Severity == severityWarning {
		e.Message = "warning: " + e.Message
	}
	return e.Error()
}

// checkedFile is the result for one file.
type checkedFile struct {
	Path     string    `json:"path"`
	Kind     string    `json:"kind"` // "agent", "partial", "workflow", "script", "host tools", or "skill"
	Problems []problem `json:"problems"`
}

func newValidateCmd(a *command) *cobra.Command {
	strict := false
	cmd := a.Verb(cli.OutputFlags|cli.AgentsFlags|cli.HostToolFlags, &cobra.Command{
		Use:     "validate PATH…",
		Example: "  workcell validate agents workflow.yaml\n  workcell validate --strict -o json .",
		Short:   "Check agents, workflows, scripts, and skills",
		Long: `Check agents (*.prompt), workflows and model scripts (*.yaml, *.yml), skills (SKILL.md), and directories that
contain any of these. The command also checks all agents that a workflow uses, and each agent's partials and skills. It
reports all problems with file, line, and column, and exits with 3 if it finds any. It needs no container engine or
API keys.

Problems that you can fix with flags of ` + "`workcell run`" + ` are warnings. Examples are a model of an unknown
provider (--model) and a workspace directory that does not exist (--workspace).`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.validate(cmd.Context(), args, strict)
		},
	})
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 3 if there are warnings")
	return cmd
}

func (a *command) validate(ctx context.Context, args []string, strict bool) (err error) {
	paths, err := filesToCheck(args)
	if err != nil {
		return err
	}
	registry, err := a.OpenHostTools(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, registry.Close()) }()
	web, err := a.Services()
	if err != nil {
		return err
	}
	c := &checker{
		command: a, hostTools: registry, services: web, todo: paths, seen: map[problem]bool{}, done: map[string]bool{},
	}
	for _, path := range paths {
		c.done[filepath.Clean(path)] = true
	}
	for i := 0; i < len(c.todo); i++ { // check appends the agents of workflows to todo
		c.check(ctx, c.todo[i])
	}
	var lines []string
	for _, f := range c.files {
		for _, p := range f.Problems {
			lines = append(lines, p.line())
		}
	}
	if err := a.PrintLines(c.files, lines...); err != nil {
		return err
	}
	warned := ""
	if c.warnings > 0 {
		warned = " and " + app.Counted(c.warnings, "warning")
	}
	found := fmt.Sprintf("%s%s in %s", app.Counted(c.errors, "problem"), warned, app.Counted(len(c.files), "file"))
	if c.errors > 0 || strict && c.warnings > 0 {
		return app.Fail(app.ExitInvalid, errors.New(found), "")
	}
	a.Notice("%s", found)
	return nil
}

// filesToCheck returns the specified files and the files in the specified directories.
func filesToCheck(args []string) ([]string, error) {
	var paths []string
	for _, arg := range args {
		if st, err := os.Stat(arg); err != nil || !st.IsDir() {
			paths = append(paths, arg) // includes missing files, which are reported as problems
			continue
		}
		err := filepath.WalkDir(arg, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && kindByName(path) != "" {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			return nil, app.Fail(app.ExitInvalid, err, "")
		}
	}
	if len(paths) == 0 {
		return nil, app.Fail(app.ExitInvalid, errors.New("no agents or workflows found"),
			"agent files end in .prompt, workflows and scripts in .yaml or .yml")
	}
	return paths, nil
}

func kindByName(path string) string {
	switch ext := filepath.Ext(path); {
	case filepath.Base(path) == skillFile:
		return "skill"
	case ext == app.AgentExt && strings.HasPrefix(filepath.Base(path), "_"):
		return "partial"
	case ext == app.AgentExt:
		return "agent"
	case strings.EqualFold(ext, ".yaml"), strings.EqualFold(ext, ".yml"):
		return "workflow"
	}
	return ""
}

// checker checks files and counts their problems.
type checker struct {
	*command
	hostTools        *hosttools.Registry // nil: what agents ask of it is not checked
	services         *services.Gateway   // of the configuration
	files            []checkedFile
	errors, warnings int
	todo             []string         // all files to check, including checked files
	done             map[string]bool  // files in todo
	seen             map[problem]bool // reported problems, because several agents may include the same partial
}

// check checks one file.
func (c *checker) check(ctx context.Context, path string) {
	kind, wrong, warned := kindByName(path), []error(nil), []error(nil)
	switch _, err := os.Stat(path); {
	case kind == "" && err != nil:
		wrong = append(wrong, err)
	case kind == "":
		wrong = append(wrong, &frontmatter.Error{
			File: path, Message: "not an agent or workflow",
			Hint: "agent files end in .prompt, workflows and scripts in .yaml or .yml, skills are SKILL.md",
		})
	case kind == "agent":
		doc, err := tools.CheckAgent(path)
		wrong = append(wrong, err)
		if doc != nil {
			warned = append(warned, modelProblem(doc), rootProblem(c.Options.Env, doc.AsRoot()))
		}
		if doc != nil && err == nil {
			wrong = append(wrong, app.HostToolProblems(ctx, c.hostTools, doc), c.skillsOf(doc))
			wrong, warned = c.addServices(wrong, warned, app.ServiceProblems(c.services, doc))
		}
	case kind == "skill":
		wrong = append(wrong, skillProblem(path))
	case kind == "partial":
		wrong = append(wrong, tools.CheckPartial(path))
	case app.HasKey(path, app.ServersKey):
		kind = "host tools"
		// Validation needs no secrets.
		_, err := mcpsource.ReadConfig(path, func(string) (string, bool) { return "unknown", true })
		wrong = append(wrong, err)
	case app.HasKey(path, app.ScriptKey):
		kind = "script"
		_, err := scripted.Load(path)
		wrong = append(wrong, err)
	default:
		wf, err := workflow.Check(path, &workflow.LoadOptions{Agents: c.agentsOf(path)})
		wrong = append(wrong, err)
		if wf != nil {
			warned = append(warned, workspaceProblem(ctx, wf), rootProblem(c.Options.Env, wf.AsRoot()))
			wrong, warned = c.addServices(wrong, warned, wf.CheckServices(c.services.Problems))
		}
	}
	c.add(checkedFile{Path: path, Kind: kind, Problems: []problem{}}, wrong, warned)
}

// addServices adds problems with services. They are warnings if no service is configured, because the file can run with
// another configuration.
func (c *checker) addServices(wrong, warned []error, found error) (_, _ []error) {
	if len(c.services.Names()) == 0 {
		return wrong, append(warned, found)
	}
	return append(wrong, found), warned
}

// agentsOf finds the agents of a workflow for the loader, and has them checked.
func (c *checker) agentsOf(workflow string) func(name string) (*frontmatter.Document, error) {
	files := app.AgentsFor(workflow, c.Options.Agents)
	return func(name string) (*frontmatter.Document, error) {
		doc, err := files.Known(name)
		if path, missing := files.Find(name); missing == nil {
			c.later(path)
		}
		return doc, err
	}
}

// later adds a file to the files to check, unless it is one of them.
func (c *checker) later(path string) {
	if !c.done[filepath.Clean(path)] {
		c.done[filepath.Clean(path)] = true
		c.todo = append(c.todo, path)
	}
}

// add adds a file with problems, sorted by position.
func (c *checker) add(f checkedFile, wrong, warned []error) {
	warnings := app.ProblemsOf(f.Path, warned...)
	all := append(app.ProblemsOf(f.Path, wrong...), warnings...)
	all.Sort(f.Path)
	for _, e := range all {
		p, count := problem{e.File, e.Line, e.Column, severityError, e.Message, e.Hint}, &c.errors
		if slices.Contains(warnings, e) {
			p.Severity, count = severityWarning, &c.warnings
		}
		if !c.seen[p] {
			c.seen[p] = true
			f.Problems = append(f.Problems, p)
			*count++
		}
	}
	c.files = append(c.files, f)
}

// modelProblem returns the error of a run without --model for the agent's model.
func modelProblem(doc *frontmatter.Document) error {
	if doc.Meta.Model == "" {
		if app.NeedsNoModel(doc) {
			return nil
		}
		return doc.Problem("", "add model: provider/name, or pass --model to `workcell run`", "the agent has no model")
	}
	use := models.Use{Model: doc.Meta.Model, Agent: strings.TrimSuffix(filepath.Base(doc.File), app.AgentExt)}
	if _, err := use.Provider(); err != nil {
		_, hint := app.Classify(err)
		return doc.Problem("model", hint, "%v", err)
	}
	if err := app.CheckCoding(doc, use.Model); err != nil {
		return doc.Problem("model", "use another model, or pass --model to `workcell run`", "%v", err)
	}
	return nil
}

// workspaceProblem returns an error if the workflow's workspace cannot be copied.
func workspaceProblem(ctx context.Context, wf *workflow.Workflow) error {
	err := wf.CheckWorkspace(ctx)
	if at, ok := errors.AsType[*frontmatter.Error](err); ok {
		at.Hint = "the path is relative to the workflow file; to use another directory, run with --workspace"
	}
	return err
}

// rootProblem returns an error if an agent or a workflow requests sandboxes as root, at a position of the
// file. It returns nil otherwise.
func rootProblem(e environ.Lookup, at *frontmatter.Error) error {
	if at == nil || app.RootAllowed(e) {
		return nil
	}
	at.Message, at.Hint = "root is not allowed in sandboxes", "use another user, or set WORKCELL_ALLOW_ROOT=1 to run it"
	return at
}

// skillFile is the name of the file in the directory of a skill.
const skillFile = "SKILL.md"

// skillsOf adds the skills of a coding agent to the files to check. It returns problems of the agent's skill patterns.
func (c *checker) skillsOf(doc *frontmatter.Document) error {
	found, err := app.Skills(doc)
	if err != nil {
		return doc.Problem("sandbox.executor.skills", "paths are relative to the agent file", "executor.skills: %v", err)
	}
	for _, name := range found {
		c.later(filepath.Join(filepath.Dir(doc.File), filepath.FromSlash(name), skillFile))
	}
	return nil
}

// skillProblem returns all violations of the standard by the skill of a file, joined.
func skillProblem(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	dir := filepath.Dir(abs)
	return skill.Check(os.DirFS(filepath.Dir(dir)), filepath.Base(dir))
}
