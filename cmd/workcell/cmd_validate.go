package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// problem is something wrong with a file.
type problem struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// checkedFile is the verdict on one file.
type checkedFile struct {
	Path     string    `json:"path"`
	Kind     string    `json:"kind"` // "agent", "workflow" or "script"
	Problems []problem `json:"problems"`
}

func newValidateCmd(a *app) *cobra.Command {
	var (
		out    outputFlag
		agents string
	)
	cmd := &cobra.Command{
		Use:   "validate PATH…",
		Short: "Check agents, workflows and scripts",
		Long: `Check agents (*.prompt), workflows and scripts of the scripted model (*.yaml, *.yml), and directories of them. All
problems of all files are reported, each with file and line. Needs no engine and no key. Exits with 3 when there is a
problem.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			paths, err := filesToCheck(args)
			if err != nil {
				return err
			}
			var files []checkedFile
			count := 0
			for _, path := range paths {
				f := checkFile(path, agents)
				count += len(f.Problems)
				files = append(files, f)
			}
			if err := out.write(a.stdout, files, func(w io.Writer) error { return problemLines(w, files) }); err != nil {
				return err
			}
			if count > 0 {
				return fail(exitInvalid, fmt.Errorf("%d problem(s) in %d file(s)", count, len(files)), "")
			}
			fmt.Fprintf(a.stderr, "workcell: %d file(s) are valid\n", len(files))
			return nil
		},
	}
	out.addTo(cmd)
	cmd.Flags().StringVar(&agents, "agents", "", "directory of the workflows' agents (default agents/ beside or above the workflow)")
	return cmd
}

// problemLines writes "file:line:column: message" lines, which editors understand.
func problemLines(w io.Writer, files []checkedFile) error {
	for _, f := range files {
		for _, p := range f.Problems {
			e := frontmatter.Error(p)
			if _, err := fmt.Fprintln(w, oneLine(e.Error())); err != nil {
				return err
			}
		}
	}
	return nil
}

// filesToCheck gives the named files and those below the named directories.
func filesToCheck(args []string) ([]string, error) {
	var paths []string
	for _, arg := range args {
		st, err := os.Stat(arg)
		if err != nil {
			return nil, fail(exitInvalid, err, "")
		}
		if !st.IsDir() {
			if kindByName(arg) == "" {
				return nil, fail(exitInvalid, fmt.Errorf("%s is neither an agent nor a workflow", arg),
					"agents end in .prompt, workflows and scripts in .yaml or .yml")
			}
			paths = append(paths, arg)
			continue
		}
		err = filepath.WalkDir(arg, func(path string, d fs.DirEntry, err error) error {
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
	switch strings.ToLower(filepath.Ext(path)) {
	case agentExt:
		return "agent"
	case ".yaml", ".yml":
		return "workflow"
	}
	return ""
}

// checkFile checks one file; problems are its result.
func checkFile(path, agents string) checkedFile {
	f := checkedFile{Path: path, Kind: kindByName(path), Problems: []problem{}}
	var err error
	switch {
	case f.Kind == "agent":
		_, err = checkAgent(path)
	case isScript(path):
		f.Kind = "script"
		_, err = scripted.Load(path)
	default:
		_, err = workflow.Load(path, &workflow.LoadOptions{Agents: agentsFor(path, agents).known})
	}
	f.Problems = append(f.Problems, problemsOf(path, err)...)
	return f
}

// checkAgent reads an agent's file and checks what can be known without a model.
func checkAgent(path string) (*frontmatter.Document, error) {
	src, err := frontmatter.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return tools.CheckPrompt(path, src)
}

// maxScriptBytes is more than any script is allowed to have; a larger file is for the workflow loader to refuse.
const maxScriptBytes = 8 << 20

// isScript tells a script from a workflow: only scripts have agents at the top and no steps. It looks at the text, since
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
	var fromScript scripted.Problems
	var out []problem
	switch {
	case err == nil:
	case errors.As(err, &list):
		for _, e := range list {
			out = append(out, problem(*e))
		}
	case errors.As(err, &fromScript):
		for _, p := range fromScript {
			out = append(out, problem{File: p.File, Line: p.Line, Column: p.Column, Message: p.Message})
		}
	default:
		out = append(out, problem{File: path, Message: err.Error()})
	}
	return out
}
