package app

import (
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

// CheckAgent reads an agent's file and checks what can be known without a model. Nothing but the sandbox is registered
// with Genkit here.
func CheckAgent(path string) (*frontmatter.Document, error) { return tools.CheckAgent(path) }

// maxScriptBytes is more than any script is allowed to have; a larger file is for the workflow loader to refuse.
const maxScriptBytes = 8 << 20

// HasKey reports whether a file has, at its top, the key of another kind of file, and no steps as a workflow. It looks
// at the text, since a hostile file may be made to be expensive to parse, and the loaders alone have the limits for
// that.
func HasKey(path string, key *regexp.Regexp) bool {
	src, err := yamlnode.ReadUntrusted(path, maxScriptBytes)
	return err == nil && len(src) < maxScriptBytes && key.Match(src) && !workflowKey.Match(src)
}

// isNoWorkflow reports whether a file is of another kind.
func isNoWorkflow(path string) bool { return HasKey(path, ScriptKey) || HasKey(path, ServersKey) }

// Keys at the top of a file.
var (
	ScriptKey   = regexp.MustCompile(`(?m)^["']?agents["']?[ \t]*:`)
	ServersKey  = regexp.MustCompile(`(?m)^["']?servers["']?[ \t]*:`)
	workflowKey = regexp.MustCompile(`(?m)^["']?steps["']?[ \t]*:`)
)

// ProblemsOf takes the errors of parsers apart.
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
				err = notThere.Err // it is reported with its file
			}
			out = append(out, &frontmatter.Error{File: path, Message: err.Error()})
		}
	}
	return out
}

// AgentExt is the ending of agents' files.
const AgentExt = ".prompt"

// AgentFiles finds the file of an agent by the agent's name.
type AgentFiles struct {
	Dirs []string // looked into in this order
	near int      // the first directories, which were found, not named: they must not be links
}

// AgentsFor returns where a workflow's agents are: in dir when one is given, else in agents/ beside or above the
// workflow's own directory, or beside the workflow.
func AgentsFor(workflowPath, dir string) AgentFiles {
	if dir != "" {
		return AgentFiles{Dirs: []string{dir}}
	}
	base := filepath.Dir(workflowPath)
	return AgentFiles{near: 2, Dirs: []string{filepath.Join(base, "agents"), filepath.Join(base, "..", "agents"), base}}
}

// Find returns the file of an agent, which may be one that its reader refuses, with the reason.
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

// Known reads the file of an agent for the workflow loader. What is wrong inside the file is reported where the agent
// is loaded.
func (a AgentFiles) Known(name string) (*frontmatter.Document, error) {
	path, err := a.Find(name)
	if err != nil {
		return nil, err
	}
	return readAgent(path)
}

// readAgent is AgentFiles.Known for a file that is known.
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

// List returns the names of all agents, sorted. Files that begin with an underscore are parts of others.
func (a AgentFiles) List() []string {
	var names []string
	for _, dir := range a.Dirs {
		paths, err := filepath.Glob(filepath.Join(dir, "*"+AgentExt))
		if err != nil {
			continue // the directory's name is a malformed pattern: then nothing can be listed, only found by name
		}
		for _, p := range paths {
			if name := strings.TrimSuffix(filepath.Base(p), AgentExt); !strings.HasPrefix(name, "_") {
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
	doc, err := CheckAgent(path)
	if err != nil {
		return nil, err
	}
	return workflow.ForAgent(doc), nil
}

// LoadWorkflow is loadFile, and returns the files of the agents by name. If dir is not empty, it has a workflow's
// agents.
func LoadWorkflow(path, dir string) (*workflow.Workflow, map[string]string, error) {
	files := AgentsFor(path, dir)
	wf, err := loadFile(path, files.Known)
	if err != nil {
		return nil, nil, Fail(ExitInvalid, err, "")
	}
	if wf.Agent() != nil {
		return wf, map[string]string{wf.ID: path}, nil
	}
	agents := map[string]string{}
	for _, name := range wf.Agents() {
		if path, err := files.Find(name); err == nil {
			agents[name] = path
		}
	}
	return wf, agents, nil
}
