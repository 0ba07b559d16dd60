package mcpserver

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Bounds of what is parsed.
const (
	maxScriptBytes = 64 << 10
	maxNesting     = 8      // of shells that are called by shells
	maxBrackets    = 500    // open at once: the parser recurses
	maxCommands    = 10_000 // that one call runs
)

// word is a word of a command as far as it can be known before the command runs.
type word struct {
	text   string
	static bool // false: it is computed when the command runs
}

func staticWords(texts []string) []word {
	out := make([]word, len(texts))
	for i, t := range texts {
		out[i] = word{text: t, static: true}
	}
	return out
}

// commands are the simple commands that a shell line or an argument list would run.
type commands struct {
	list [][]word
	// unknown says why not everything that would run can be known; empty when it can.
	unknown string
	// reads: a shell takes its commands from the standard input of the whole.
	reads bool
	// computed: what the program that is being looked at reads is known only when it runs.
	computed bool
	piped    bool // there is a pipe, so that nobody knows whose input is whose
}

// commandsOf gives what an argument list runs. stdin is what it would read, nil when that is nothing; later says that it
// can be written to afterwards.
func commandsOf(argv []string, stdin *string, later bool) commands {
	var c commands
	c.add(staticWords(argv), nil, 0)
	c.given(stdin, later)
	return c
}

// commandsIn gives what a shell line runs; see commandsOf.
func commandsIn(script string, stdin *string, later bool) commands {
	var c commands
	c.parse(script, 0)
	c.given(stdin, later)
	return c
}

func (c *commands) doubt(why string) {
	if c.unknown == "" {
		c.unknown = why
	}
}

// parse adds what a script runs. Which shell lies at /bin/sh is the image's business, so the script is read as POSIX
// shells and as bash would, and what either would run counts.
func (c *commands) parse(script string, depth int) {
	if len(script) > maxScriptBytes {
		c.doubt("the command is too long to be checked; write it to a file and run that")
		return
	}
	if depth > maxNesting {
		c.doubt("shells are nested too deep to be checked")
		return
	}
	if open := deepest(script); open > maxBrackets {
		c.doubt("the command has too many brackets to be checked")
		return
	}
	read := false
	for _, lang := range []syntax.LangVariant{syntax.LangPOSIX, syntax.LangBash} {
		file, err := syntax.NewParser(syntax.Variant(lang)).Parse(strings.NewReader(script), "")
		if err != nil {
			continue
		}
		read = true
		c.walk(file, depth)
	}
	if !read {
		c.doubt("the command is not valid shell syntax")
	}
}

// deepest gives how many brackets are open at once, quoted ones included.
func deepest(script string) (most int) {
	open := 0
	for _, r := range script {
		switch r {
		case '(', '{':
			open++
			most = max(most, open)
		case ')', '}':
			open = max(0, open-1)
		}
	}
	return most
}

// walk adds the simple commands below a node.
func (c *commands) walk(node syntax.Node, depth int) {
	syntax.Walk(node, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.BinaryCmd:
			c.piped = c.piped || n.Op == syntax.Pipe || n.Op == syntax.PipeAll
		case *syntax.Stmt:
			if call, ok := n.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 {
				doc, known := hereDocument(n)
				if !known {
					c.computed = true
				}
				c.add(wordsOf(call.Args), doc, depth)
				c.computed = false
			}
		}
		return true
	})
}

// hereDocument gives the text that a statement's program reads, when it stands in the statement; nil for none. known is
// false for a text that is computed when the command runs.
func hereDocument(s *syntax.Stmt) (text *string, known bool) {
	for _, r := range slices.Backward(s.Redirs) {
		switch r.Op {
		case syntax.Hdoc, syntax.DashHdoc:
			return literal(r)
		case syntax.WordHdoc:
			if w := wordOf(r.Word); w.static {
				return &w.text, true
			}
			return nil, false
		}
	}
	return nil, true
}

// literal gives a here-document as it stands. Without quotes around its delimiter a backslash means something, which is
// left to the shell.
func literal(r *syntax.Redirect) (*string, bool) {
	if r.Hdoc == nil {
		return new(string), true
	}
	quoted := false
	for _, part := range r.Word.Parts {
		lit, ok := part.(*syntax.Lit)
		quoted = quoted || !ok || strings.Contains(lit.Value, "\\")
	}
	var b strings.Builder
	for _, part := range r.Hdoc.Parts {
		lit, ok := part.(*syntax.Lit)
		if !ok || !quoted && strings.Contains(lit.Value, "\\") {
			return nil, false
		}
		b.WriteString(lit.Value)
	}
	text := b.String()
	return &text, true
}

// add adds a command, what its wrappers run, and what shells that it calls run.
func (c *commands) add(words []word, stdin *string, depth int) {
	if len(c.list) >= maxCommands || depth > maxNesting {
		c.doubt("too much would run for it to be checked")
		return
	}
	c.list = append(c.list, words)
	inner := unwrap(words)
	if len(inner) == 0 {
		return
	}
	if len(inner) < len(words) {
		c.list = append(c.list, inner)
	}
	if !inner[0].static {
		c.doubt("the program is computed when the command runs")
		return
	}
	program := path.Base(inner[0].text)
	switch {
	case isShell(program):
		c.addShell(inner, stdin, depth)
	case program == "eval" || program == "trap" && len(inner) > 1:
		args := inner[1:]
		if program == "trap" {
			args = args[:1]
		}
		c.parseWords(args, depth)
	case program == "find":
		c.addFind(inner[1:], depth)
	}
}

// addShell adds what a shell is told to run.
func (c *commands) addShell(words []word, stdin *string, depth int) {
	script, kind := shellScript(words)
	switch {
	case kind == scriptNone:
	case kind == scriptText:
		c.parseWords([]word{script}, depth)
	case c.computed:
		c.doubt("a shell's commands are computed when the command runs")
	case stdin != nil:
		c.parse(*stdin, depth+1)
	default:
		c.reads = true
	}
}

// given adds what shells read that take their commands from standard input: text that is known, or what comes later.
func (c *commands) given(stdin *string, later bool) {
	switch {
	case !c.reads:
	case c.piped:
		c.doubt("a shell gets its commands through a pipe")
	case later:
		c.doubt("a shell gets its commands later, through sandbox_exec_write")
	case stdin != nil:
		c.parse(*stdin, 1)
	}
}

// addFind adds what find runs for the files it finds.
func (c *commands) addFind(args []word, depth int) {
	is := func(w word, texts ...string) bool { return w.static && slices.Contains(texts, w.text) }
	for i := 0; i < len(args); i++ {
		if !is(args[i], "-exec", "-execdir", "-ok", "-okdir") {
			continue
		}
		end := i + 1
		for end < len(args) && !is(args[end], ";") && !(is(args[end], "+") && is(args[end-1], "{}")) {
			end++
		}
		if end > i+1 {
			c.add(args[i+1:end], nil, depth+1)
		}
		i = end
	}
}

// parseWords parses the script that words make when they are joined.
func (c *commands) parseWords(words []word, depth int) {
	texts := make([]string, len(words))
	for i, w := range words {
		if !w.static {
			c.doubt("a script is computed when the command runs")
			return
		}
		texts[i] = w.text
	}
	c.parse(strings.Join(texts, " "), depth+1)
}

func isShell(program string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash"}, path.Base(program))
}

type scriptKind int

const (
	scriptNone  scriptKind = iota // a file, of which nothing is known
	scriptText                    // after -c
	scriptStdin                   // standard input
)

// shellScript tells where a shell takes its commands from.
func shellScript(words []word) (script word, kind scriptKind) {
	for i := 1; i < len(words); i++ {
		w := words[i]
		switch {
		case !w.static:
			return word{}, scriptText // may be -c
		case w.text == "-" || w.text == "--":
			if i+1 < len(words) {
				return word{}, scriptNone
			}
			return word{}, scriptStdin
		case strings.HasPrefix(w.text, "--"), strings.HasPrefix(w.text, "+"):
		case strings.HasPrefix(w.text, "-"):
			switch {
			case strings.Contains(w.text, "c"):
				for j := i + 1; j < len(words); j++ { // options may still follow
					if !words[j].static || !strings.HasPrefix(words[j].text, "-") {
						return words[j], scriptText
					}
				}
				return word{text: "", static: true}, scriptText
			case strings.Contains(w.text, "s"):
				return word{}, scriptStdin
			case strings.HasSuffix(w.text, "o"), strings.HasSuffix(w.text, "O"):
				i++ // its value
			}
		default:
			return word{}, scriptNone
		}
	}
	return word{}, scriptStdin
}
