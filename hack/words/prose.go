package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Kinds of texts. Only the first two have a profile.
const (
	docs     = "docs"
	comments = "comments"
	literal  = "strings"
)

const long = "long" // the id of a long line

// A text is a paragraph, a table row, a heading, a comment, or a string literal, joined to one line.
type text struct {
	path       string
	line, last int
	kind       string
	body       string
}

// A hit is a banned phrase or a long line.
type hit struct {
	path       string
	line       int
	id, phrase string
}

// prose contains the texts of all files and the findings in them.
type prose struct {
	texts    []text
	hits     []hit
	excused  int      // exceptions
	problems []string // exceptions without a reason

	path  string // the current file
	ok    map[int]bool
	open  []string // the lines of the current text
	first int
}

// read returns the prose of all files below root.
func read(root fs.FS) (*prose, error) {
	p := &prose{}
	return p, fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || name == "dist"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go" && path.Ext(name) != ".md":
			return nil
		}
		src, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		p.path, p.ok = name, map[int]bool{}
		before := len(p.texts)
		if path.Ext(name) == ".md" {
			p.markdown(string(src))
		} else {
			p.source(src)
		}
		p.texts = append(p.texts[:before], slices.DeleteFunc(p.texts[before:], p.isExcused)...)
		return nil
	})
}

var excuse = regexp.MustCompile(`<!-- words:ok(.*)-->|^// words:ok(.*)`)

func (p *prose) isExcused(t text) bool {
	for line := t.line; line <= t.last; line++ {
		if p.ok[line] {
			return true
		}
	}
	return false
}

// excuse notes an exception on a line.
func (p *prose) excuse(line int, s string) {
	if m := excuse.FindStringSubmatch(s); m != nil {
		p.ok[line] = true
		p.excused++
		if strings.TrimSpace(m[1]+m[2]) == "" {
			p.problems = append(p.problems, fmt.Sprintf("%s:%d: exception without a reason", p.path, line))
		}
	}
}

func (p *prose) add(line int, s string) {
	if len(p.open) == 0 {
		p.first = line
	}
	p.open = append(p.open, strings.Split(s, "\n")...)
}

// flush ends the open text.
func (p *prose) flush(kind string) {
	if body := strings.Join(strings.Fields(strings.Join(p.open, " ")), " "); body != "" {
		p.texts = append(p.texts, text{p.path, p.first, p.first + len(p.open) - 1, kind, body})
	}
	p.open = nil
}

var item = regexp.MustCompile(`^([-*+]|\d+[.)]) `)

// markdown reads a page without code fences and front matter.
func (p *prose) markdown(src string) {
	n, fence := 0, ""
	for line := range strings.Lines(src) {
		n++
		line = strings.TrimSpace(strings.TrimLeft(line, "> "))
		switch {
		case fence != "":
			if strings.HasPrefix(line, fence) {
				fence = ""
			}
			continue
		case strings.HasPrefix(line, "```") || strings.HasPrefix(line, "~~~") || n == 1 && line == "---":
			fence = line[:3]
			line = ""
		}
		if line == "" || item.MatchString(line) {
			p.flush(docs)
		}
		if line != "" {
			p.excuse(n, line)
			p.add(n, line)
		}
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "|") {
			p.flush(docs)
		}
	}
	p.flush(docs)
}

// source reads the comments and string literals of a Go file, and notes long lines.
func (p *prose) source(src []byte) {
	n := 0
	for line := range strings.Lines(string(src)) {
		n++
		if w := utf8.RuneCountInString(strings.TrimRight(line, "\r\n")); w > columns {
			p.hits = append(p.hits, hit{p.path, n, long, strconv.Itoa(w) + " columns"})
		}
	}
	file := token.NewFileSet().AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, tok, lit := s.Scan()
		line := file.Line(min(pos, token.Pos(file.Base()+file.Size())))
		switch {
		case tok == token.SEMICOLON && lit == "\n" || strings.HasPrefix(lit, "//go:") || strings.HasPrefix(lit, "//nolint"):
		case tok == token.COMMENT:
			p.excuse(line, lit)
			if strings.Trim(lit, "/ ") == "" || len(p.open) > 0 && line != p.first+len(p.open) {
				p.flush(comments)
			}
			p.add(line, strings.Trim(lit, "/*"))
		default:
			p.flush(comments)
			if value, err := strconv.Unquote(lit); err == nil && tok == token.STRING && len(strings.Fields(value)) >= 3 {
				p.add(line, value)
				p.flush(literal)
			}
			if tok == token.EOF {
				return
			}
		}
	}
}

// A measure is how often terms appear per 100,000 words or sentences. The terms are words, pairs of words, or special
// counts.
type measure struct {
	terms  string // separated by commas
	most   bool   // target is an upper bound
	target int
}

var profile = map[string]measure{
	"docs you":            {"you,your", false, 300},
	"docs long sentences": {"long", true, 12000}, // sentences with more than 25 words
}

func init() {
	for _, kind := range []string{docs, comments} {
		profile[kind+" if"] = measure{"if", false, 250}
		profile[kind+" use"] = measure{"use,using", false, 200}
		profile[kind+" example"] = measure{"for example,such as", false, 80}
		profile[kind+" existing"] = measure{"existing,available,current,multiple,specified", false, 100}
		profile[kind+" purpose"] = measure{"to avoid,to allow,to prevent,to ensure,to support", false, 40}
		profile[kind+" what"] = measure{"what", true, 150}
		profile[kind+" that"] = measure{"that", true, 900}
		profile[kind+" its"] = measure{"its", true, 300}
		profile[kind+" semicolons"] = measure{";", true, 400}
	}
}

func (m measure) String() string {
	return fmt.Sprintf("(goal: at %s %d)", map[bool]string{true: "most", false: "least"}[m.most], m.target)
}

// worse reports whether now misses the goal and is worse than before. It accepts 3 %, because each new text changes
// rates.
func (m measure) worse(now, before int) bool {
	if m.most {
		return now > max(m.target, before+before/33+1)
	}
	return now < min(m.target, before-before/33-1)
}

var sentence = regexp.MustCompile(`[.!?]["')*]*(?: |$)|\|`)

// rates returns the value of each measure.
func (p *prose) rates() map[string]int {
	counts, rates := map[string]int{}, map[string]int{}
	for _, t := range p.texts {
		counts[t.kind+";"] += strings.Count(t.body, ";")
		last := ""
		for word := range strings.FieldsFuncSeq(strings.ToLower(t.body), func(r rune) bool { return !unicode.IsLetter(r) }) {
			counts[t.kind]++
			counts[t.kind+word]++
			counts[t.kind+last+" "+word]++
			last = word
		}
		for _, s := range sentence.Split(t.body, -1) {
			if n := len(strings.Fields(s)); n > 25 {
				counts[t.kind+long]++
			} else if n < 3 {
				continue
			}
			counts[t.kind+" sentences"]++
		}
	}
	for name, m := range profile {
		kind, _, _ := strings.Cut(name, " ")
		of := kind
		if m.terms == long {
			of = kind + " sentences"
		}
		n := 0
		for term := range strings.SplitSeq(m.terms, ",") {
			n += counts[kind+term]
		}
		rates[name] = n * 100_000 / max(counts[of], 1)
	}
	return rates
}
