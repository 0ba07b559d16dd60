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
	maxParsed      = 16 * maxScriptBytes // of all scripts in a script
	maxNesting     = 8                   // of shells and wrappers that are called by shells and wrappers
	maxBrackets    = 500                 // open at once: the parser recurses
	maxCommands    = 10_000              // that one call runs
)

// commands are the simple commands that a shell line or an argument list would run.
type commands struct {
	list [][]word
	// unknown says why not everything that would run can be known; empty when it can.
	unknown string
	// parsed is the size of the scripts that were parsed.
	parsed int
	// arithmetic: to bash ((…)) is an expression in what is being walked, and not a subshell in a subshell.
	arithmetic bool
}

// commandsOf gives what an argument list runs. stdin is what it would read, nil when that is nothing; later says that it
// can be written to afterwards.
func commandsOf(argv []string, stdin *string, later bool) commands {
	var c commands
	in := given(stdin, later)
	c.add(staticWords(argv), in, 0)
	c.settle(in, 0)
	return c
}

// commandsIn gives what a shell line runs; see commandsOf.
func commandsIn(script string, stdin *string, later bool) commands {
	var c commands
	in := given(stdin, later)
	c.parse(script, in, 0)
	c.settle(in, 0)
	return c
}

func (c *commands) doubt(why string) {
	if c.unknown == "" {
		c.unknown = why
	}
}

// parse adds what a script runs. Which shell lies at /bin/sh is the image's business, so the script is read as POSIX
// shells and as bash would, and what either would run counts.
func (c *commands) parse(script string, in *input, depth int) {
	if len(script) > maxScriptBytes {
		c.doubt("the command is too long to be checked; write it to a file and run that")
		return
	}
	if c.parsed += len(script); depth > maxNesting || c.parsed > maxParsed {
		c.doubt("shells are nested too deep to be checked")
		return
	}
	if open := deepest(script); open > maxBrackets {
		c.doubt("the command has too many brackets to be checked")
		return
	}
	script = strings.NewReplacer("\r", plainChar, "\x00", "").Replace(script)
	posix, _ := c.statements(script, syntax.LangPOSIX)
	bash, bashErr := c.statements(script, syntax.LangBash)
	if bashErr != nil { // it takes what other shells do, but for oddities
		c.doubt("the command is not valid shell syntax")
	}
	before := c.arithmetic
	c.arithmetic = bashErr == nil
	for _, s := range posix {
		c.statement(s, in, depth)
	}
	c.arithmetic = before
	for _, s := range bash {
		c.statement(s, in, depth)
	}
}

// plainChar stands for a carriage return, which is a character like any other to shells, and a blank or nothing to the
// parser.
const plainChar = "\x01"

// statements gives the statements of a script, up to the first that the parser does not take: a shell that reads line by
// line has run them when it finds that one.
func (c *commands) statements(script string, lang syntax.LangVariant) (list []*syntax.Stmt, err error) {
	parser := syntax.NewParser(syntax.Variant(lang), syntax.KeepComments(true))
	file, err := parser.Parse(strings.NewReader(script), "")
	if err == nil {
		if misread(file, script) {
			c.doubt(whyMisread)
		}
		return file.Stmts, nil
	}
	for s, serr := range parser.StmtsSeq(strings.NewReader(script)) { // to its end: the parser does not bear a break here
		if serr == nil {
			list = append(list, s)
		}
	}
	return list, err
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

// walk adds the simple commands below a node, which read in where nothing else is said.
func (c *commands) walk(node syntax.Node, in *input, depth int) {
	syntax.Walk(node, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Stmt:
			c.statement(n, in, depth)
			return false
		case *syntax.FuncDecl: // whoever calls it says what it reads
			c.statement(n.Body, &input{why: whyFunction}, depth)
			return false
		case *syntax.Subshell:
			if c.arithmetic && doubled(n) { // its words are held against the rules, but (( $a > 1 )) is no cause for doubt
				before := c.unknown
				c.statement(n.Stmts[0], in, depth)
				c.unknown = before
				return false
			}
		case *syntax.CoprocClause:
			if n.Name != nil && n.Stmt.Cmd == nil { // the parser takes the command for a name
				c.add([]word{wordOf(n.Name)}, &input{why: whyPipe}, depth)
			}
			c.statement(n.Stmt, &input{why: whyPipe}, depth)
			return false
		case *syntax.ProcSubst:
			if n.Op == syntax.CmdOut {
				in := &input{why: whyPipe}
				for _, s := range n.Stmts {
					c.statement(s, in, depth)
				}
				return false
			}
		}
		return true
	})
}

// doubled tells whether a subshell stands in the brackets of another, as in ((…)).
func doubled(s *syntax.Subshell) bool {
	if len(s.Stmts) != 1 {
		return false
	}
	inner, ok := s.Stmts[0].Cmd.(*syntax.Subshell)
	return ok && inner.Lparen.Offset() == s.Lparen.Offset()+1
}

// statement adds the simple commands of a statement, each with what it reads.
func (c *commands) statement(s *syntax.Stmt, outer *input, depth int) {
	in := redirected(s.Redirs, outer)
	for _, r := range s.Redirs {
		c.walk(r, outer, depth)
	}
	switch cmd := s.Cmd.(type) {
	case nil: // redirections alone
	case *syntax.CallExpr:
		c.walk(cmd, in, depth) // what stands in its words
		words := wordsOf(cmd)
		if len(words) == 0 {
			break
		}
		c.add(words, in, depth)
		c.add(afterAmpersand(s.Redirs, cmd.Args), in, depth)
		if len(words) == 1 && words[0].text == "exec" && in != outer {
			c.reads(in) // the shell itself reads on there
		}
	case *syntax.BinaryCmd:
		c.statement(cmd.X, in, depth)
		right := in
		if cmd.Op == syntax.Pipe || cmd.Op == syntax.PipeAll {
			right = &input{why: whyPipe}
		}
		c.statement(cmd.Y, right, depth)
	default:
		c.walk(cmd, in, depth)
	}
	if in != outer {
		c.settle(in, depth)
	}
}

// afterAmpersand gives the words of a command that follow &>file: to a shell that does not know that redirection, they are
// a command of their own.
func afterAmpersand(redirs []*syntax.Redirect, args []*syntax.Word) []word {
	for _, r := range redirs {
		if r.Op != syntax.RdrAll && r.Op != syntax.AppAll {
			continue
		}
		if i := slices.IndexFunc(args, func(w *syntax.Word) bool { return w.Pos().After(r.Pos()) }); i >= 0 {
			return wordsOf(&syntax.CallExpr{Args: args[i:]})
		}
	}
	return nil
}

// add adds a command, what it runs if it is a wrapper, and what a shell runs that it calls.
func (c *commands) add(words []word, in *input, depth int) {
	if len(c.list) >= maxCommands || depth > maxNesting {
		c.doubt("too much would run for it to be checked")
		return
	}
	if len(words) == 0 {
		return
	}
	c.list = append(c.list, words)
	program := path.Base(words[0].text)
	if !words[0].static || program == placeholder {
		c.doubt("the program is computed when the command runs")
		return
	}
	args := words[1:]
	if w, ok := wrapperOf(program); ok {
		c.addWrapped(w, words[0], args, in, depth)
		return
	}
	switch program {
	case "sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash", "hush", "ksh93", "lksh", "oksh", "posh", "yash":
		c.addShell(args, in, depth)
	case "eval":
		c.parseWords(operands(args), in, depth)
	case "trap":
		if args = operands(args); len(args) > 1 && !strings.HasPrefix(args[0].text, "-") {
			c.parseWords(args[:1], in, depth)
		}
	case ".", "source":
		if args = operands(args); len(args) > 0 {
			c.addFile(args[0], in)
		}
	case "alias":
		c.addAliases(args, in, depth)
	case "find":
		c.addFind(args, in, depth)
	default:
		in.other = in.other || program == "read" || !harmless(program)
	}
}

// addAliases adds what aliases stand for. Which later words they change is left to the shell.
func (c *commands) addAliases(args []word, in *input, depth int) {
	for _, w := range args {
		if _, value, ok := strings.Cut(w.text, "="); ok || !w.static {
			c.parseWords([]word{{text: value, static: w.static}}, in, depth)
			c.doubt("an alias changes what later words mean")
		}
	}
}

// operands gives the arguments of a builtin that takes no options, but a -- before them.
func operands(args []word) []word {
	if len(args) > 0 && args[0].static && args[0].text == "--" {
		return args[1:]
	}
	return args
}

// addWrapped adds what a wrapper runs.
func (c *commands) addWrapped(w wrapper, name word, args []word, in *input, depth int) {
	options, rest := w.split(args)
	in.other = in.other || w.appends // it reads the words
	ran, joins := false, w.joins
	for _, o := range options {
		switch {
		case o.is(w.idle):
			return
		case o.is(w.script):
			c.parseWords([]word{o.value}, in, depth)
			ran = true
		case o.is(w.splits):
			c.add(slices.Concat([]word{name}, splitWords(o.value), rest), in, depth+1)
			return
		case o.is(w.replaces):
			rest = replaced(rest, o.value)
			w.appends = false
		case o.is(w.verbatim):
			joins = false
		}
	}
	switch {
	case len(rest) == 0:
		if w.shell && !ran {
			c.reads(in)
		}
	case joins:
		c.parseWords(rest, in, depth)
	case w.login:
		c.addShell(rest, in, depth)
	case w.appends:
		c.add(append(slices.Clip(rest), word{}), in, depth+1)
	default:
		c.add(rest, in, depth+1)
	}
}

// addShell adds what a shell with these arguments is told to run.
func (c *commands) addShell(args []word, in *input, depth int) {
	switch script, kind := shellScript(args); kind {
	case scriptText:
		c.parseWords([]word{script}, in, depth)
	case scriptFile:
		c.addFile(script, in)
	case scriptStdin:
		c.reads(in)
	case scriptUnknown:
		c.doubt(whyScript)
	}
}

// addFile sees to a file that a shell takes its commands from. What lies in files is not looked into, but not every name
// is that of a file.
func (c *commands) addFile(name word, in *input) {
	switch placeOf(name) {
	case placeFile:
		in.other = true
	case placeStdin:
		c.reads(in)
	case placeElse:
		c.doubt(whyComputed)
	}
}

// reads says that a shell takes its commands from in.
func (c *commands) reads(in *input) {
	if in.why != "" {
		c.doubt(in.why)
	}
	in.shell = true
}

// settle adds the commands that a shell takes from in, once everything is known that reads there. What such a shell calls
// reads on in its script.
func (c *commands) settle(in *input, depth int) {
	switch {
	case !in.shell || in.text == nil:
	case in.other:
		c.doubt(whyShared)
	default:
		c.parse(*in.text, &input{why: whyShared}, depth+1)
	}
}

// addFind adds what find runs for the files it finds, whose names it puts in the place of {}.
func (c *commands) addFind(args []word, in *input, depth int) {
	is := func(w word, texts ...string) bool { return w.static && slices.Contains(texts, w.text) }
	for i := 0; i < len(args); i++ {
		if !is(args[i], "-exec", "-execdir", "-ok", "-okdir") {
			continue
		}
		end := i + 1
		for end < len(args) && !is(args[end], ";") && !(is(args[end], "+") && is(args[end-1], placeholder)) {
			end++
		}
		run := slices.Clone(args[i+1 : end])
		for j, w := range run { // a name alone is no option and no script, as it begins with a directory's
			if w.text != placeholder && strings.Contains(w.text, placeholder) {
				run[j].static = false
			}
		}
		c.add(run, in, depth+1)
		i = end
	}
}

// parseWords parses the script that words make when they are joined.
func (c *commands) parseWords(words []word, in *input, depth int) {
	texts := make([]string, len(words))
	for i, w := range words {
		if !w.static {
			c.doubt(whyScript)
			return
		}
		texts[i] = w.text
	}
	c.parse(strings.Join(texts, " "), in, depth+1)
}
