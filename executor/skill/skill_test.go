package skill_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/workcell-dev/workcell/executor/skill"
	"github.com/workcell-dev/workcell/internal/checktest"
)

const heron = `---
name: heron
description: >
  Use it for herons.
license: MIT
compatibility: needs git
allowed-tools: Bash(git:*) Read
metadata:
  version: 1.2
  author: "A: B"
---
# Herons

Look them up.
`

// directory returns a directory with a skill.
func directory(text string) fstest.MapFS {
	return fstest.MapFS{"heron/SKILL.md": {Data: []byte(text), Mode: 0o644}}
}

func TestParse(t *testing.T) {
	s, _, err := skill.Load(directory(heron), "heron")
	checktest.Must(t, err)
	want := skill.Skill{Name: "heron", Description: "Use it for herons."}
	if diff := cmp.Diff(want, s, cmpopts.IgnoreUnexported(skill.Skill{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	again, _, err := skill.Load(directory("\ufeff"+strings.ReplaceAll(heron, "\n", "\r\n")), "heron")
	if err != nil || again.Description != s.Description {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestParseErrors(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "not UTF-8": "---\nname: \xff\n---\n", "long": "---\nname: x\n---\n" + strings.Repeat("x", 1<<20), "long front matter": "---\nname: x\n" + strings.Repeat("# x\n", 1<<15) + "---\n",
	} {
		if err := skill.Check(directory(text), "heron"); !errors.Is(err, skill.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestValidate verifies the length limits of the standard, and the report of all problems at once. TestBadCorpus
// verifies the other rules.
func TestValidate(t *testing.T) {
	for name, test := range map[string]struct {
		front string
		want  []string
	}{
		"long name":        {"name: " + strings.Repeat("a", 65) + "\ndescription: x", []string{"65 characters"}},
		"long description": {"name: a\ndescription: " + strings.Repeat("ä", 1025), []string{"1025 characters"}},
		"long compat": {
			"name: a\ndescription: x\ncompatibility: " + strings.Repeat("a", 501), []string{"501 characters"},
		},
		"all":     {"name: A\nx: y", []string{`unknown field "x"`, `name "A"`, "description is missing"}},
		"letters": {"name: größe-2\ndescription: x", nil},
	} {
		files := fstest.MapFS{"SKILL.md": {Data: []byte("---\n" + test.front + "\n---\n")}}
		err := skill.Check(files, ".")
		if len(test.want) == 0 && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(test.want) > 0 && !errors.Is(err, skill.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range test.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", name, err, want)
			}
		}
	}
}

// TestLoad verifies that skills that coding agents accept are loaded with diagnostics.
func TestLoad(t *testing.T) {
	for name, test := range map[string]struct {
		text        string
		diagnostics int
		want        string
	}{
		"good":           {heron, 0, "heron"},
		"other name":     {strings.Replace(heron, "name: heron", "name: egret", 1), 1, "egret"},
		"no name":        {"---\ndescription: x\n---\n", 1, "heron"},
		"unquoted colon": {"---\nname: heron\ndescription: Use when: it's a heron\n---\n", 0, "heron"},
		"unknown":        {"---\nname: heron\ndescription: x\nhooks: {a: b}\nversion: 1\n---\n", 2, "heron"},
	} {
		s, diagnostics, err := skill.Load(directory(test.text), "heron")
		if err != nil || s.Name != test.want || len(diagnostics) != test.diagnostics {
			t.Errorf("%s: %q, %q, %v", name, s.Name, diagnostics, err)
		}
	}
	for name, fsys := range map[string]fs.FS{
		"no description": directory("---\nname: heron\n---\n"), "no file": fstest.MapFS{"heron/x": {}},
		"link": fstest.MapFS{"heron/SKILL.md": {Data: []byte("/etc/passwd"), Mode: fs.ModeSymlink | 0o777}},
	} {
		if _, _, err := skill.Load(fsys, "heron"); err == nil {
			t.Errorf("%s is loaded", name)
		}
	}
}

// FuzzParse verifies that Check never panics, and problems have a line and fit in a message.
func FuzzParse(f *testing.F) {
	corpus(f)
	f.Add([]byte(heron))
	f.Add([]byte("---\nname: a\ndescription: b: c\n---\nx"))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := skill.Check(fstest.MapFS{"SKILL.md": {Data: b}}, ".")
		if err != nil && !errors.Is(err, skill.ErrInvalid) {
			t.Error(err)
		}
		for _, p := range problems(err) {
			if p.Line < 1 || p.Line > bytes.Count(b, []byte("\n"))+1 || !utf8.ValidString(p.Message) {
				t.Errorf("%+v", p)
			}
		}
	})
}

// TestInstallRefuses verifies that invalid skills are rejected before anything is copied. The test has no sandbox.
func TestInstallRefuses(t *testing.T) {
	const front = "---\nname: heron\ndescription: x\n---\n"
	load := func(more fstest.MapFS) (skill.Skill, error) {
		more["heron/SKILL.md"] = &fstest.MapFile{Data: []byte(front), Mode: 0o644}
		s, _, err := skill.Load(more, "heron")
		return s, err
	}
	many, half := fstest.MapFS{}, fstest.MapFS{"heron/x": {Data: make([]byte, 32<<20)}}
	for i := range 2000 {
		many[fmt.Sprintf("heron/%d", i)] = &fstest.MapFile{}
	}
	for name, files := range map[string]fstest.MapFS{
		"link":  {"heron/x": {Data: []byte("/etc/passwd"), Mode: fs.ModeSymlink | 0o777}},
		"pipe":  {"heron/x": {Mode: fs.ModeNamedPipe | 0o600}},
		"many":  many,
		"large": {"heron/x": {Data: make([]byte, 64<<20+1)}},
	} {
		if _, err := load(files); !errors.Is(err, skill.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good, err := load(fstest.MapFS{})
	large, err2 := load(half)
	checktest.Must(t, errors.Join(err, err2))
	bad, another := good, large
	bad.Name, another.Name = "../x", "another"
	for name, skills := range map[string][]skill.Skill{
		"twice": {good, good}, "large together": {large, another}, "no files": {{Name: "heron"}}, "path name": {bad},
	} {
		if err := skill.Install(t.Context(), nil, skills, "/home"); !errors.Is(err, skill.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
