package mcpserver

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/pattern"
	"mvdan.cc/sh/v3/syntax"
)

// Limits of the shell parser.
const (
	maxScriptBytes = 64 << 10
	maxNesting     = 8   // of nested shells and wrappers
	maxBrackets    = 500 // open at the same time, because the parser is recursive
)

// Reasons why the commands of a call are not all known.
const (
	whyTooLong  = "the command is too long to check; write it to a file and run the file"
	whyTooDeep  = "the command is nested too deeply to check"
	whyInvalid  = "the command is not valid shell syntax"
	whyProgram  = "a program name is computed at run time"
	whyComputed = "a script is computed at run time; put it in single quotes, and pass values as arguments"
	whyInput    = "a shell reads its commands from its input; pass them with -c"
)

// word is a word of a command.
type word struct {
	text   string // empty for a computed word
	static bool   // false if the word is computed at run time
	path   bool   // a computed file name: the literal part contains a slash
	output bool   // the word is computed from the output of commands
}

// commands are the simple commands of a shell line or an argument list with literal words. It includes commands in
// lists, pipelines, substitutions, and functions, after wrappers such as sudo, and in the scripts of sh -c and eval.
// This prevents accidents of an honest model but provides no isolation. docs/reference/guard-policy.md lists the missed
// commands.
type commands struct {
	list [][]word // the first word of each command is static
	// unknown is the reason why some commands are unknown. It is empty if all commands are known.
	unknown string
}

// commandsOf returns the commands of an argument list. input is the standard input of the program, or nil if unknown.
func commandsOf(argv []string, input *string) commands {
	words := make([]word, len(argv))
	for i, text := range argv {
		words[i] = word{text: text, static: true}
	}
	var c commands
	c.add(words, input, 0)
	return c
}

// commandsIn returns the commands of a shell line.
func commandsIn(script string) commands {
	var c commands
	c.parse(script, 0)
	return c
}

func (c *commands) doubt(why string) {
	c.unknown = cmp.Or(c.unknown, why)
}

// parse adds the commands of a script. It parses the script as bash.
func (c *commands) parse(script string, depth int) {
	switch {
	case len(script) > maxScriptBytes:
		c.doubt(whyTooLong)
		return
	case depth > maxNesting || deepest(script) > maxBrackets:
		c.doubt(whyTooDeep)
		return
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script), "")
	if err != nil {
		c.doubt(whyInvalid)
		return
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		if stmt, ok := n.(*syntax.Stmt); ok {
			if call, ok := stmt.Cmd.(*syntax.CallExpr); ok {
				var words []word
				for _, w := range call.Args {
					words = append(words, wordOf(w))
				}
				c.add(words, hereDocument(stmt.Redirs), depth)
			}
		}
		return true
	})
}

// deepest returns the maximum nesting depth of brackets, including quoted brackets.
func deepest(script string) (most int) {
	open := 0
	for _, r := range script {
		switch r {
		case '(', '{', '[':
			open++
			most = max(most, open)
		case ')', '}', ']':
			open = max(0, open-1)
		}
	}
	return most
}

// add adds a command, and the nested command or script in the arguments.
func (c *commands) add(words []word, input *string, depth int) {
	if len(words) == 0 {
		return
	}
	if depth > maxNesting {
		c.doubt(whyTooDeep)
		return
	}
	if !words[0].static {
		c.doubt(whyProgram)
		return
	}
	c.list = append(c.list, words)
	program, args := path.Base(words[0].text), words[1:]
	if len(args) > 0 && args[0].text == "--" {
		args = args[1:]
	}
	switch program {
	case "sh", "ash", "bash", "dash", "ksh", "mksh", "zsh":
		c.addShell(args, input, depth)
	case ".", "source":
		c.addShell(args[:min(1, len(args))], input, depth)
	case "eval":
		c.addScript(args, depth)
	case "trap":
		c.addScript(args[:min(1, len(args))], depth)
	case "find":
		c.addFind(args, depth)
	case "xargs":
		c.add(append(filledIn(wrappers[program].command(args)), word{}), nil, depth+1) // xargs appends the words of the input
	default:
		if w, ok := wrappers[program]; ok {
			c.add(w.command(args), input, depth+1)
		}
	}
}

// addShell adds the commands of a shell. They come from -c, or from the input if the shell has no file argument.
func (c *commands) addShell(args []word, input *string, depth int) {
	for i := 0; i < len(args); i++ {
		text := args[i].text
		switch {
		case args[i].path, !args[i].static && !args[i].output && i == len(args)-1:
			return // a file
		case !args[i].static:
			c.doubt(whyComputed)
			return
		case text == "-s", text == "/dev/stdin",
			strings.HasPrefix(text, "/dev/fd/"), strings.HasPrefix(text, "/proc/self/fd/"):
			c.addInput(input, depth)
			return
		case slices.Contains([]string{"-o", "+o", "-O", "+O", "--rcfile", "--init-file"}, text):
			i++ // skip the option's value
		case len(text) > 1 && text[0] == '-' && text[1] != '-' && strings.Contains(text, "c"):
			rest := wrapper{}.command(args[i+1:]) // without options
			c.addScript(rest[:min(1, len(rest))], depth)
			return
		case !strings.HasPrefix(text, "-") && !strings.HasPrefix(text, "+"):
			return // a file, whose commands are not checked
		}
	}
	c.addInput(input, depth)
}

// addInput adds the commands in the input of a shell.
func (c *commands) addInput(input *string, depth int) {
	if input == nil {
		c.doubt(whyInput)
		return
	}
	c.parse(*input, depth+1)
}

// addFind adds the commands of find, for example of -exec.
func (c *commands) addFind(args []word, depth int) {
	for i := 0; i < len(args); i++ {
		if !slices.Contains([]string{"-exec", "-execdir", "-ok", "-okdir"}, args[i].text) {
			continue
		}
		rest := args[i+1:]
		end := slices.IndexFunc(rest, func(w word) bool { return w.text == ";" || w.text == "+" })
		if end < 0 {
			end = len(rest)
		}
		c.add(filledIn(rest[:end]), nil, depth+1)
		i += end
	}
}

// filledIn returns words in which words with {} are computed, because find and xargs insert file names there.
func filledIn(words []word) []word {
	out := slices.Clone(words)
	for i, w := range out {
		if strings.Contains(w.text, "{}") {
			out[i] = word{}
		}
	}
	return out
}

// addScript joins words to a script and adds its commands.
func (c *commands) addScript(words []word, depth int) {
	texts := make([]string, len(words))
	for i, w := range words {
		if !w.static {
			c.doubt(whyComputed)
			return
		}
		texts[i] = w.text
	}
	c.parse(strings.Join(texts, " "), depth+1)
}

// wrapper describes the arguments of a program before the nested command.
type wrapper struct {
	values   string // letters of options whose value is the next word
	lookup   string // letters of options with which the program runs no command
	operands int    // number of words before the command
	assigns  bool   // NAME=VALUE is allowed before the command
}

var wrappers = map[string]wrapper{
	"builtin": {}, "busybox": {}, "nohup": {}, "setsid": {}, "toybox": {},
	"chroot":  {operands: 1},
	"command": {lookup: "vV"},
	"doas":    {values: "Cu"},
	"env":     {values: "Cu", assigns: true},
	"exec":    {values: "a"},
	"flock":   {values: "Ew", operands: 1},
	"ionice":  {values: "cn", lookup: "pPu"},
	"nice":    {values: "n"},
	"stdbuf":  {values: "eio"},
	"strace":  {values: "eopsu"},
	"sudo":    {values: "CDghpRrTtu", lookup: "lvV", assigns: true},
	"taskset": {lookup: "p", operands: 1},
	"time":    {values: "fo"},
	"timeout": {values: "ks", operands: 1},
	"xargs":   {values: "adEILnPs"},
}

// command returns the nested command of a wrapper. It expects values of long options after "=".
func (w wrapper) command(args []word) []word {
	operands := w.operands
	for i := 0; i < len(args); i++ {
		text := args[i].text
		short := len(text) > 1 && text[0] == '-' && text[1] != '-'
		value := strings.IndexAny(text, w.values)
		switch {
		case short && value > 0:
			if value == len(text)-1 {
				i++
			}
		case short && strings.ContainsAny(text, w.lookup):
			return nil
		case strings.HasPrefix(text, "-") || w.assigns && strings.Contains(text, "="):
		case operands > 0:
			operands--
		default:
			return args[i:]
		}
	}
	return nil
}

// wordOf returns the text of a word without quotes, unless the shell computes the word.
func wordOf(w *syntax.Word) word {
	braces := syntax.Word{Parts: w.Parts}
	computed := syntax.SplitBraces(&braces) && slices.ContainsFunc(braces.Parts, is[*syntax.BraceExp]) // it splits {} too
	for _, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			computed = computed || pattern.HasMeta(part.Value, 0)
		case *syntax.SglQuoted:
		case *syntax.DblQuoted:
			computes := func(p syntax.WordPart) bool { return !is[*syntax.Lit](p) }
			computed = computed || slices.ContainsFunc(part.Parts, computes)
		default:
			computed = true
		}
	}
	if !computed {
		// Use a new Config for each call: expand stores notes in it, or in a global Config if none is passed.
		if fields, err := expand.Fields(&expand.Config{}, w); err == nil && len(fields) == 1 {
			return word{text: fields[0], static: true}
		}
	}
	// The literal part before "=" shows an assignment for env.
	if lit, ok := w.Parts[0].(*syntax.Lit); ok && strings.Contains(lit.Value, "=") {
		return word{text: lit.Value}
	}
	return word{path: namesFile(w.Parts), output: slices.ContainsFunc(w.Parts, is[*syntax.ProcSubst])}
}

// is reports whether a part of a word has type T.
func is[T syntax.WordPart](p syntax.WordPart) bool {
	_, ok := p.(T)
	return ok
}

// namesFile reports whether a literal part of a computed word contains a slash. Shells do not treat such a word as an
// option.
func namesFile(parts []syntax.WordPart) bool {
	return slices.ContainsFunc(parts, func(p syntax.WordPart) bool {
		switch p := p.(type) {
		case *syntax.Lit:
			return strings.Contains(p.Value, "/")
		case *syntax.DblQuoted:
			return namesFile(p.Parts)
		}
		return false
	})
}

// hereDocument returns the input of a command with these redirections. It returns nil if the text is unknown.
func hereDocument(redirs []*syntax.Redirect) *string {
	var found *string
	for _, r := range redirs {
		switch {
		case r.N != nil:
		case r.Op == syntax.WordHdoc:
			if w := wordOf(r.Word); w.static {
				found = &w.text
			}
		case r.Hdoc != nil:
			text, quoted := r.Hdoc.Lit(), r.Word.Lit() == ""
			if text != "" && (quoted || !strings.Contains(text, "\\")) {
				found = &text
			}
		}
	}
	return found
}

// harmless reports whether a program is a builtin with effects only on the shell itself. Allow lists need not contain
// such programs.
func harmless(program string) bool {
	return slices.Contains([]string{":", "[", "break", "cd", "continue", "echo", "exit", "false", "printf", "pwd", "read",
		"return", "set", "shift", "test", "true", "umask", "unset", "wait"}, program)
}
