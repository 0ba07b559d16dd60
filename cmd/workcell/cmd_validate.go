package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/models"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// Severities of problems. A warning is about what a flag or a variable of the command that runs the file can make good.
const (
	severityError   = "error"
	severityWarning = "warning"
)

// problem is something wrong with a file.
type problem struct {
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Severity string `json:"severity"`
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
}

// place returns the problem without its severity.
func (p problem) place() *frontmatter.Error {
	return &frontmatter.Error{File: p.File, Line: p.Line, Column: p.Column, Message: p.Message, Hint: p.Hint}
}

// line returns "file:line:column: message; hint", which editors understand.
func (p problem) line() string {
	e := p.place()
	if p.Severity == severityWarning {
		e.Message = "warning: " + e.Message
	}
	return sanitize.Line(e.Error())
}

// checkedFile is the verdict on one file.
type checkedFile struct {
	Path     string    `json:"path"`
	Kind     string    `json:"kind"` // "agent", "partial", "workflow" or "script"
	Problems []problem `json:"problems"`
}

type validateOptions struct {
	out    outputFlag
	agents string
	strict bool
}

func newValidateCmd(a *app) *cobra.Command {
	o := &validateOptions{}
	cmd := &cobra.Command{
		Use:   "validate PATH…",
		Short: "Check agents, workflows and scripts",
		Long: `Check agents (*.prompt), workflows and scripts of the scripted model (*.yaml, *.yml), and directories of them. The
agents of workflows and what they include are checked, too. All problems of all files are reported, each with file and
line. Needs no engine and no key. Exits with 3 when there is a problem.

What is wrong unless ` + "`workcell run`" + ` is told otherwise, such as a model of an unknown provider, which --model replaces,
or a workspace: that is not there, which --workspace replaces, is a warning.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), a, args) },
	}
	o.out.addTo(cmd)
	cmd.Flags().StringVar(&o.agents, "agents", "", "directory of the workflows' agents (default agents/ beside or above the workflow)")
	cmd.Flags().BoolVar(&o.strict, "strict", false, "exit with 3 for warnings, too")
	return cmd
}

func (o *validateOptions) run(ctx context.Context, a *app, args []string) error {
	paths, err := filesToCheck(args)
	if err != nil {
		return err
	}
	c := &checker{agents: o.agents, env: a.env, seen: map[problem]bool{}, done: map[string]bool{}}
	for _, path := range paths {
		c.done[filepath.Clean(path)] = true
	}
	for _, path := range paths {
		c.check(ctx, path)
	}
	for len(c.more) > 0 { // agents of workflows that were not named themselves
		path := c.more[0]
		c.more = c.more[1:]
		c.check(ctx, path)
	}
	if err := o.out.write(a.stdout, c.files, func(w io.Writer) error { return problemLines(w, c.files) }); err != nil {
		return err
	}
	bad, verdict := c.errors, fmt.Sprintf("%d problem(s) in %d file(s)", c.errors, len(c.files))
	if c.warnings > 0 {
		verdict = fmt.Sprintf("%d problem(s) and %d warning(s) in %d file(s)", c.errors, c.warnings, len(c.files))
	}
	if o.strict {
		bad += c.warnings
	}
	switch {
	case bad > 0:
		return fail(exitInvalid, errors.New(verdict), "")
	case c.warnings > 0:
		fmt.Fprintf(a.stderr, "workcell: %d file(s) are valid, with %d warning(s)\n", len(c.files), c.warnings)
	default:
		fmt.Fprintf(a.stderr, "workcell: %d file(s) are valid\n", len(c.files))
	}
	return nil
}

// problemLines writes one line for each problem.
func problemLines(w io.Writer, files []checkedFile) error {
	for _, f := range files {
		for _, p := range f.Problems {
			if _, err := fmt.Fprintln(w, p.line()); err != nil {
				return err
			}
		}
	}
	return nil
}

// filesToCheck returns the named files and those below the named directories.
func filesToCheck(args []string) ([]string, error) {
	var paths []string
	for _, arg := range args {
		if st, err := os.Stat(arg); err != nil || !st.IsDir() {
			paths = append(paths, arg) // also one that is not there, which is a problem among others
			continue
		}
		err := filepath.WalkDir(arg, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && kindByName(path) != "" {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			return nil, fail(exitInvalid, err, "")
		}
	}
	if len(paths) == 0 {
		return nil, fail(exitInvalid, errors.New("there is no agent and no workflow to check"),
			"agents end in .prompt, workflows and scripts in .yaml or .yml")
	}
	return paths, nil
}

func kindByName(path string) string {
	switch ext := filepath.Ext(path); {
	case ext == agentExt && strings.HasPrefix(filepath.Base(path), "_"):
		return "partial"
	case ext == agentExt:
		return "agent"
	case strings.EqualFold(ext, ".yaml"), strings.EqualFold(ext, ".yml"):
		return "workflow"
	}
	return ""
}

// checker checks files and counts what is wrong with them.
type checker struct {
	agents           string // --agents
	env              environ.Lookup
	files            []checkedFile
	errors, warnings int
	more             []string         // agents of workflows, to be checked
	done             map[string]bool  // files that were checked or will be
	seen             map[problem]bool // a partial that two agents include is wrong once
}

// check checks one file.
func (c *checker) check(ctx context.Context, path string) {
	f := checkedFile{Path: path, Kind: kindByName(path), Problems: []problem{}}
	switch {
	case f.Kind == "":
		c.add(&f, severityError, &frontmatter.Error{
			File: path, Message: "it is neither an agent nor a workflow", Hint: "agents end in .prompt, workflows and scripts in .yaml or .yml",
		})
	case f.Kind == "agent":
		doc, err := checkAgent(path)
		c.add(&f, severityError, err)
		if doc != nil {
			c.add(&f, severityWarning, modelProblem(doc), rootProblem(c.env, doc.AsRoot()))
		}
	case f.Kind == "partial":
		c.add(&f, severityError, tools.CheckPartial(path))
	case isScript(path):
		f.Kind = "script"
		_, err := scripted.Load(path)
		c.add(&f, severityError, err)
	default:
		wf, err := workflow.Check(path, &workflow.LoadOptions{Agents: c.agentsOf(path)})
		c.add(&f, severityError, err)
		if wf != nil {
			c.add(&f, severityWarning, workspaceProblem(ctx, wf), rootProblem(c.env, wf.AsRoot()))
		}
	}
	inOrder := frontmatter.InOrder(path)
	slices.SortStableFunc(f.Problems, func(a, b problem) int { return inOrder(a.place(), b.place()) })
	c.files = append(c.files, f)
}

// agentsOf finds the agents of a workflow for its loader, and has them checked.
func (c *checker) agentsOf(workflow string) func(name string) (*frontmatter.Document, error) {
	files := agentsFor(workflow, c.agents)
	return func(name string) (*frontmatter.Document, error) {
		doc, err := files.known(name)
		if path, missing := files.find(name); missing == nil && !c.done[filepath.Clean(path)] {
			c.done[filepath.Clean(path)] = true
			c.more = append(c.more, path)
		}
		return doc, err
	}
}

// add adds the problems that errors tell of to a file's.
func (c *checker) add(f *checkedFile, severity string, errs ...error) {
	for _, err := range errs {
		for _, p := range problemsOf(f.Path, err) {
			p.Severity = severity
			if c.seen[p] {
				continue
			}
			c.seen[p] = true
			f.Problems = append(f.Problems, p)
			if severity == severityWarning {
				c.warnings++
			} else {
				c.errors++
			}
		}
	}
}

// checkAgent reads an agent's file and checks what can be known without a model. Nothing but the sandbox is registered
// with Genkit here.
func checkAgent(path string) (*frontmatter.Document, error) { return tools.CheckAgent(path, nil) }

// modelProblem returns what is wrong with the model that an agent names, as a run without --model would.
func modelProblem(doc *frontmatter.Document) error {
	if doc.Meta.Model == "" {
		return doc.Problem(nil, "add model: provider/name, or pass --model to run", "the agent names no model")
	}
	use := models.Use{Model: doc.Meta.Model, Agent: strings.TrimSuffix(filepath.Base(doc.File), agentExt)}
	if _, err := use.Provider(); err != nil {
		_, hint := classify(err)
		return doc.Problem([]any{"model"}, hint, "%v", err)
	}
	return nil
}

// workspaceProblem returns why the workflow's workspace cannot be copied.
func workspaceProblem(ctx context.Context, wf *workflow.Workflow) error {
	err := wf.CheckWorkspace(ctx)
	var at *frontmatter.Error
	if errors.As(err, &at) {
		at.Hint = "it is relative to the workflow's file; run --workspace names another one"
	}
	return err
}

// rootProblem is about an agent or a workflow that asks for sandboxes of root at a place of its file, nil when it does not.
func rootProblem(e environ.Lookup, at *frontmatter.Error) error {
	if at == nil || rootAllowed(e) {
		return nil
	}
	at.Message, at.Hint = "root is not allowed in sandboxes", "use another user, or set WORKCELL_ALLOW_ROOT=1 where it runs"
	return at
}

// maxScriptBytes is more than any script is allowed to have; a larger file is for the workflow loader to refuse.
const maxScriptBytes = 8 << 20

// isScript reports whether a file is a script rather than a workflow: only scripts have agents at the top and no steps. It looks at the text, since
// a hostile file may be made to be expensive to parse, and the loaders alone have the limits for that.
func isScript(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close() // only read from
	src, err := io.ReadAll(io.LimitReader(file, maxScriptBytes))
	return err == nil && len(src) < maxScriptBytes && scriptKey.Match(src) && !workflowKey.Match(src)
}

// Keys at the top of a file.
var (
	scriptKey   = regexp.MustCompile(`(?m)^["']?agents["']?[ \t]*:`)
	workflowKey = regexp.MustCompile(`(?m)^["']?steps["']?[ \t]*:`)
)

// problemsOf takes the error of a parser apart.
func problemsOf(path string, err error) []problem {
	var list frontmatter.Errors
	var one *frontmatter.Error
	var fromScript scripted.Problems
	var out []problem
	switch {
	case err == nil:
	case errors.As(err, &list):
		for _, e := range list {
			out = append(out, problemOf(e))
		}
	case errors.As(err, &fromScript):
		for _, p := range fromScript {
			out = append(out, problemOf((*frontmatter.Error)(p)))
		}
	case errors.As(err, &one):
		out = append(out, problemOf(one))
	default:
		if notThere := (*fs.PathError)(nil); errors.As(err, &notThere) {
			err = notThere.Err // it is reported with its file
		}
		out = append(out, problem{File: path, Message: err.Error()})
	}
	return out
}

func problemOf(e *frontmatter.Error) problem {
	return problem{File: e.File, Line: e.Line, Column: e.Column, Message: e.Message, Hint: e.Hint}
}
