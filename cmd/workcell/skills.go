package main

import (
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/executor/skill"
	"github.com/workcell-dev/workcell/frontmatter"
)

// skillFile is the name of the file that makes a directory a skill.
const skillFile = "SKILL.md"

// skillsOf has the skills of a coding agent checked, and returns what is wrong with its patterns.
func (c *checker) skillsOf(doc *frontmatter.Document) error {
	s := doc.Sandbox
	if s == nil || s.Mode != frontmatter.ModeExecutor || s.Executor == nil {
		return nil
	}
	dir := filepath.Dir(doc.File)
	root, err := os.OpenRoot(dir) // links out of it are not followed, as in a run
	if err != nil {
		return doc.Problem([]any{"sandbox", "executor", "skills"}, "", "%v", err)
	}
	defer root.Close() // only read from
	found, err := skill.Find(root.FS(), s.Executor.Skills)
	if err != nil {
		return doc.Problem([]any{"sandbox", "executor", "skills"}, "paths are relative to the agent file", "executor.skills: %v", err)
	}
	for _, name := range found {
		path := filepath.Join(dir, filepath.FromSlash(name), skillFile)
		if !c.done[path] {
			c.done[path] = true
			c.todo = append(c.todo, path)
		}
	}
	return nil
}

// skillProblem returns all that the standard does not allow of the skill that a file makes, joined.
func skillProblem(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	dir := filepath.Dir(abs)
	return skill.Check(os.DirFS(filepath.Dir(dir)), filepath.Base(dir))
}
