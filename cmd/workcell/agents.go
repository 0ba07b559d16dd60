package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/frontmatter"
)

// agentExt is the ending of agents' files.
const agentExt = ".prompt"

// agentFiles finds the file of an agent by the agent's name.
type agentFiles struct {
	dirs []string // looked into in this order
}

// agentsFor returns where a workflow's agents are: in dir when one is given, else in agents/ beside or above the
// workflow's own directory, or beside the workflow.
func agentsFor(workflowPath, dir string) agentFiles {
	if dir != "" {
		return agentFiles{dirs: []string{dir}}
	}
	base := filepath.Dir(workflowPath)
	return agentFiles{dirs: []string{filepath.Join(base, "agents"), filepath.Join(base, "..", "agents"), base}}
}

// find returns the file of an agent.
func (a agentFiles) find(name string) (string, error) {
	if strings.ContainsAny(name, `/\`) {
		return "", fmt.Errorf("%q is not the name of an agent", name)
	}
	for _, dir := range a.dirs {
		path := filepath.Join(dir, name+agentExt)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no %s%s in %s", name, agentExt, strings.Join(a.dirs, ", "))
}

// known reads the file of an agent for the workflow loader. What is wrong inside the file is reported where the agent is
// loaded.
func (a agentFiles) known(name string) (*frontmatter.Document, error) {
	path, err := a.find(name)
	if err != nil {
		return nil, err
	}
	src, err := frontmatter.ReadFile(path)
	if err != nil {
		return nil, nil
	}
	doc, _ := frontmatter.Parse(path, src)
	return doc, nil
}

// list returns the names of all agents, sorted. Files that begin with an underscore are parts of others.
func (a agentFiles) list() []string {
	var names []string
	for _, dir := range a.dirs {
		paths, err := filepath.Glob(filepath.Join(dir, "*"+agentExt))
		if err != nil {
			continue // the directory's name is a malformed pattern: then nothing can be listed, only found by name
		}
		for _, p := range paths {
			if name := strings.TrimSuffix(filepath.Base(p), agentExt); !strings.HasPrefix(name, "_") {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
