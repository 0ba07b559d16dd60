package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/frontmatter"
)

// LoadAgent loads a prompt file as an agent, together with the included partials of its directory. It returns all
// problems of the file at once as frontmatter.Errors.
func LoadAgent(g *genkit.Genkit, file string) (*Agent, error) {
	src, err := frontmatter.ReadFile(file)
	if err != nil {
		return nil, err
	}
	doc, err := CheckPrompt(file, src)
	if err != nil {
		return nil, err
	}
	found, err := partialsBeside(doc)
	if err != nil {
		return nil, err
	}
	return (&loader{g: g, found: found, defined: map[string]bool{}}).agent(doc)
}

// partialsBeside returns the partials of an agent's directory if the agent includes any.
func partialsBeside(doc *frontmatter.Document) (partials, error) {
	if len(body(doc).includes()) == 0 {
		return partials{}, nil
	}
	return partialsIn(filepath.Dir(doc.File))
}

// partialsIn reads the partials in a directory. It ignores subdirectories, because the directory may be the user's home
// directory.
func partialsIn(dir string) (partials, error) {
	root, err := os.OpenRoot(dir) // does not follow links out of dir
	if err != nil {
		return nil, err
	}
	defer root.Close() // opened for reading only
	return findPartials(root.FS(), filepath.ToSlash(dir), false)
}

// body returns the template of an agent.
func body(doc *frontmatter.Document) template {
	return template{file: doc.File, line: doc.BodyLine, text: doc.Body}
}

// LoadAgents loads all prompt files below dir as agents and returns them by name. Files whose names begin with "_" are
// partials. It returns all problems of all files at once. Links to files outside of dir are refused.
func LoadAgents(g *genkit.Genkit, dir string) (map[string]*Agent, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() // opened for reading only
	return loadAgents(g, root.FS(), filepath.ToSlash(dir))
}

// LoadAgentsFS is like LoadAgents, but reads from fsys, for example an embedded file system.
func LoadAgentsFS(g *genkit.Genkit, fsys fs.FS) (map[string]*Agent, error) {
	return loadAgents(g, fsys, "")
}

func loadAgents(g *genkit.Genkit, fsys fs.FS, prefix string) (map[string]*Agent, error) {
	found, err := findPartials(fsys, prefix, true)
	if err != nil {
		return nil, err
	}
	docs := map[string]*frontmatter.Document{}
	var order []string
	var errs []error
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !isPrompt(name) {
			return err
		}
		file := path.Join(prefix, name)
		var doc *frontmatter.Document
		src, err := frontmatter.ReadFS(fsys, name, file)
		if err == nil {
			doc, err = CheckPrompt(file, src)
		}
		if err != nil {
			errs = append(errs, err)
			return nil
		}
		agent := promptName(name)
		if other := docs[agent]; other != nil {
			errs = append(errs, &frontmatter.Error{File: file,
				Message: fmt.Sprintf("the agent %q is already defined in %s", agent, other.File)})
			return nil
		}
		docs[agent] = doc
		order = append(order, agent)
		return nil
	})
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	agents := make(map[string]*Agent, len(docs))
	l := &loader{g: g, found: found, defined: map[string]bool{}}
	for _, name := range order {
		if agents[name], err = l.agent(docs[name]); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return agents, nil
}

// loader registers agents with the partials of their directory.
type loader struct {
	g       *genkit.Genkit
	found   partials
	defined map[string]bool // partials registered by this loader
}

// agent registers an agent's prompt and the required partials.
func (l *loader) agent(doc *frontmatter.Document) (*Agent, error) {
	meta, err := json.Marshal([]any{doc.Meta, doc.Sandbox})
	if err != nil {
		return nil, err
	}
	source := []string{string(meta), doc.Body}
	for _, name := range l.found.needed(doc.Body) {
		source = append(source, l.found[name].text)
		if l.defined[name] {
			continue
		}
		if err := l.found.cycleFrom(name); err != nil {
			return nil, err
		}
		if err := l.define(name); err != nil {
			return nil, err
		}
		l.defined[name] = true
	}
	prompt, err := register(l.g, doc)
	if err != nil {
		return nil, err
	}
	return &Agent{g: l.g, name: promptName(doc.File), doc: doc, prompt: prompt, source: digest(source...)}, nil
}

// define registers a partial once. Partials are global in Genkit, so define rejects two partials with the same name and
// different texts.
func (l *loader) define(name string) (err error) {
	p := l.found[name]
	if plugin := pluginOf(l.g); plugin != nil {
		switch known, there := plugin.toolbox().texts.LoadOrStore(name, p.text); {
		case known != p.text:
			return &frontmatter.Error{File: p.file, Message: fmt.Sprintf("partial %q is already loaded", name)}
		case there:
			return nil
		}
	}
	defer func() {
		if r := recover(); r != nil {
			err = &frontmatter.Error{File: p.file, Message: oneLine(fmt.Sprint(r))}
		}
	}()
	genkit.DefinePartial(l.g, name, p.text)
	return nil
}
