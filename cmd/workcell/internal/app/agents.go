package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/executor/skill"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/yamlnode"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// maxScriptBytes is larger than any allowed script. The workflow loader rejects larger files.
const maxScriptBytes = 8 << 20

// HasKey reports whether a file has, at its top level, the key of another kind of file, and is not a workflow with
// steps. It matches the text instead of parsing the file, because a hostile file may be expensive to parse, and only
// the loaders limit this cost.
func HasKey(path string, key *regexp.Regexp) bool {
	src, err := yamlnode.ReadUntrusted(path, maxScriptBytes)
	return err == nil && len(src) < maxScriptBytes && key.Match(src) && !workflowKey.Match(src)
}

// Top-level keys of files.
var (
	ScriptKey   = regexp.MustCompile(`(?m)^["']?agents["']?[ \t]*:`)
	ServersKey  = regexp.MustCompile(`(?m)^["']?servers["']?[ \t]*:`)
	workflowKey = regexp.MustCompile(`(?m)^["']?steps["']?[ \t]*:`)
)

// ProblemsOf splits the errors of parsers into single problems.
func ProblemsOf(path string, errs ...error) (out frontmatter.Errors) {
	for _, err := range errs {
		var list frontmatter.Errors
		var one *frontmatter.Error
		joined, several := err.(interface{ Unwrap() []error })
		switch {
		case err == nil:
		case several:
			out = append(out, ProblemsOf(path, joined.Unwrap()...)...)
		case errors.As(err, &list):
			out = append(out, list...)
		case errors.As(err, &one):
			if errors.Is(one, skill.ErrInvalid) {
				one.File = path
			}
			out = append(out, one)
		default:
			if notThere := (*fs.PathError)(nil); errors.As(err, &notThere) {
				err = notThere.Err // the problem contains the file name
			}
			out = append(out, &frontmatter.Error{File: path, Message: err.Error()})
		}
	}
	return out
}

// AgentExt is the extension of agent files.
const AgentExt = ".prompt"

// AgentFiles finds the file of an agent by the agent's name.
type AgentFiles struct {
	Dirs []string // searched in this order
	near int      // number of directories, from the first on, found and not specified; they must not be links
}

// AgentsFor returns the directories of a workflow's agents. If dir is set, it is the only directory. Otherwise, the
// agents are in agents/ in the workflow's directory or a parent directory, or next to the workflow.
func AgentsFor(workflowPath, dir string) AgentFiles {
	if dir != "" {
		return AgentFiles{Dirs: []string{dir}}
	}
	base := filepath.Dir(workflowPath)
	return AgentFiles{near: 2, Dirs: []string{filepath.Join(base, "agents"), filepath.Join(base, "..", "agents"), base}}
}

// Find returns the file of an agent. If the file must not be read, the error has the reason.
func (a AgentFiles) Find(name string) (string, error) {
	if strings.ContainsAny(name, `/\`) {
		return "", fmt.Errorf("invalid agent name %q", name)
	}
	for i, dir := range a.Dirs {
		path := filepath.Join(dir, name+AgentExt)
		st, err := os.Lstat(path)
		if err != nil || st.IsDir() {
			continue
		}
		if at, err := os.Lstat(dir); i < a.near && (err != nil || !at.IsDir()) {
			return "", fmt.Errorf("directory %s is a link; to follow it, pass it with --agents", dir)
		}
		return path, nil
	}
	return "", fmt.Errorf("%s%s not found in %s", name, AgentExt, strings.Join(a.Dirs, ", "))
}

// Known reads the file of an agent for the workflow loader. Problems in the file are reported when the agent is loaded.
func (a AgentFiles) Known(name string) (*frontmatter.Document, error) {
	path, err := a.Find(name)
	if err != nil {
		return nil, err
	}
	return readAgent(path)
}

// readAgent is like AgentFiles.Known, for a file path.
func readAgent(path string) (*frontmatter.Document, error) {
	src, err := frontmatter.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	doc, _ := frontmatter.Parse(path, src)
	return doc, nil
}

// List returns the names of all agents, sorted. Files with a leading underscore are partials.
func (a AgentFiles) List() []string {
	var names []string
	for _, dir := range a.Dirs {
		entries, _ := os.ReadDir(dir) // most of the directories do not exist
		for _, e := range entries {
			if name, ok := strings.CutSuffix(e.Name(), AgentExt); ok && !strings.HasPrefix(name, "_") {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// loadFile loads a workflow, or an agent as a workflow. find returns the files of a workflow's agents.
func loadFile(path string, find func(agent string) (*frontmatter.Document, error)) (*workflow.Workflow, error) {
	if !strings.HasSuffix(path, AgentExt) {
		return workflow.Load(path, &workflow.LoadOptions{Agents: find})
	}
	doc, err := tools.CheckAgent(path)
	if err != nil {
		return nil, err
	}
	return workflow.ForAgent(doc), nil
}

// Program is a workflow with the files of its agents. An agent is a workflow with a single step.
type Program struct {
	*workflow.Workflow
	Files map[string]string // by the agents' names

	// Of a run from the queue; nil otherwise.
	onKept func(ctx context.Context, runID string) error // see workflow.Options.OnKept
	close  func()                                        // deletes the copies of the files
}

// LoadProgram loads a workflow or an agent. If dir is not empty, it is the directory of a workflow's agents.
func LoadProgram(path, dir string) (*Program, error) {
	files := AgentsFor(path, dir)
	wf, err := loadFile(path, files.Known)
	if err != nil {
		return nil, Fail(ExitInvalid, err, "")
	}
	p := &Program{Workflow: wf, Files: map[string]string{}}
	if wf.Agent() != nil {
		p.Files[wf.ID] = path
		return p, nil
	}
	for _, name := range wf.Agents() {
		if path, err := files.Find(name); err == nil {
			p.Files[name] = path
		}
	}
	return p, nil
}
