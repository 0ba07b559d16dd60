package mcpserver

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// word is a word of a command as far as it can be known before the command runs.
type word struct {
	text   string // of a word that is computed, what stands before the first computed part
	static bool   // false: it is computed when the command runs
	stream bool   // it names what other commands write, as <(…) does
	single bool   // it is computed, but is one word whatever it holds
}

func staticWords(texts []string) []word {
	out := make([]word, len(texts))
	for i, t := range texts {
		out[i] = word{text: t, static: true}
	}
	return out
}

// wordsOf gives the words of a simple command, without what stands before it and is an assignment to bash alone, as
// m[a]=1 and a+=1 are.
func wordsOf(call *syntax.CallExpr) []word {
	out := make([]word, 0, len(call.Args))
	for _, arg := range call.Args {
		if len(out) > 0 || !assigns(bare(arg)) {
			out = append(out, wordOf(arg))
		}
	}
	return out
}

// assigns tells whether a word begins as an assignment to a variable or to an element of an array.
func assigns(text string) bool {
	name, _, ok := strings.Cut(text, "=")
	name, index, element := strings.Cut(strings.TrimSuffix(name, "+"), "[")
	return ok && syntax.ValidName(name) && (!element || strings.HasSuffix(index, "]"))
}

// wordOf gives what a shell makes of a word, when that can be known.
func wordOf(w *syntax.Word) word {
	if w == nil {
		return word{static: true}
	}
	var b strings.Builder
	for _, part := range w.Parts {
		known := false
		switch part := part.(type) {
		case *syntax.Lit:
			b.WriteString(unescaped(part.Value))
			known = true
		case *syntax.SglQuoted:
			if known = !part.Dollar; known { // $'…' has escapes, and is something else to other shells
				b.WriteString(part.Value)
			}
		case *syntax.DblQuoted:
			known = doubleQuoted(&b, part)
		}
		if !known {
			_, stream := part.(*syntax.ProcSubst)
			return word{text: b.String(), stream: stream, single: single(w)}
		}
	}
	text := b.String()
	if !expands(bare(w)) {
		return word{text: text, static: true}
	}
	return word{text: text[:strings.IndexAny(text, "*?[{")]}
}

// unescaped takes the backslashes out of unquoted text.
func unescaped(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' {
			if i++; i == len(text) || text[i] == '\n' {
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}

// doubleQuoted writes text that stands between double quotes, as far as it is known.
func doubleQuoted(b *strings.Builder, q *syntax.DblQuoted) (whole bool) {
	if q.Dollar {
		return false
	}
	for _, part := range q.Parts {
		lit, ok := part.(*syntax.Lit)
		if !ok {
			return false
		}
		text := lit.Value
		for i := 0; i < len(text); i++ {
			if text[i] == '\\' && i+1 < len(text) {
				switch text[i+1] {
				case '\n':
					i++
					continue
				case '$', '`', '"', '\\':
					i++
				}
			}
			b.WriteByte(text[i])
		}
	}
	return true
}

// single tells whether everything that is computed in a word is quoted, so that it stays one word.
func single(w *syntax.Word) bool {
	for _, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit, *syntax.SglQuoted:
		case *syntax.DblQuoted:
			for _, inner := range part.Parts {
				p, ok := inner.(*syntax.ParamExp)
				if ok && (p.Excl || p.Index != nil || p.Param == nil || p.Param.Value == "@") { // may be many words
					return false
				}
			}
		default:
			return false
		}
	}
	return !expands(bare(w))
}

// bare gives the text of a word that is neither quoted nor computed, with an x for what is.
func bare(w *syntax.Word) string {
	var b strings.Builder
	for _, part := range w.Parts {
		lit, ok := part.(*syntax.Lit)
		if !ok {
			b.WriteByte('x')
			continue
		}
		for i := 0; i < len(lit.Value); i++ {
			c := lit.Value[i]
			if c == '\\' {
				c, i = 'x', i+1
			}
			b.WriteByte(c)
		}
	}
	return b.String()
}

// expands tells whether the shell would look for files of that name, or make several words of it as bash does of {a,b}
// and {1..3}.
func expands(bare string) bool {
	if strings.ContainsAny(bare, "*?") {
		return true
	}
	if i := strings.IndexByte(bare, '['); i >= 0 && strings.Contains(bare[i:], "]") {
		return true
	}
	_, list, _ := strings.Cut(bare, "{")
	list, _, closed := cutLast(list, "}")
	return closed && (strings.Contains(list, ",") || strings.Contains(list, ".."))
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// splitWords gives the words that env -S makes of a text. It knows other escapes, blanks and variables than a shell, which
// are left to it.
func splitWords(w word) []word {
	if !w.static || strings.ContainsAny(w.text, "\\$`#\v\f\r") {
		return []word{{}}
	}
	var out []word
	for part, err := range syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).WordsSeq(strings.NewReader(w.text)) {
		if err != nil {
			return []word{{}}
		}
		out = append(out, wordOf(part))
	}
	return out
}

// scriptKind is where a shell takes its commands from.
type scriptKind int

const (
	scriptText scriptKind = iota // after -c
	scriptFile
	scriptStdin
	scriptUnknown // what is computed decides
)

// shellScript tells where a shell with these arguments takes its commands from.
func shellScript(args []word) (script word, kind scriptKind) {
	text, stdin := false, false
	for len(args) > 0 && mayBeOption(args[0]) {
		option := args[0]
		if option.single && option.text == "" && len(args) == 1 {
			break // a file, or an option that changes nothing here
		}
		values := 0 // how many of the next arguments are the option's
		args = args[1:]
		switch {
		case !option.static:
			return word{}, scriptUnknown
		case strings.HasSuffix(option.text, "-rcfile") || strings.HasSuffix(option.text, "-init-file"):
			values = 1
		case !isLongOption(option.text):
			text = text || strings.Contains(option.text, "c")
			stdin = stdin || strings.Contains(option.text, "s")
			values = strings.Count(strings.ToLower(option.text), "o")
		}
		if option.text == "-" || option.text == "--" {
			break
		}
		values = min(values, len(args))
		if slices.ContainsFunc(args[:values], func(w word) bool { return !w.static }) {
			return word{}, scriptUnknown
		}
		args = args[values:]
	}
	switch {
	case text && len(args) > 0:
		return args[0], scriptText
	case text: // an error
		return word{static: true}, scriptText
	case stdin || len(args) == 0:
		return word{}, scriptStdin
	}
	return args[0], scriptFile
}

// isLongOption tells whether a shell's option is a word, for which one dash is enough to bash.
func isLongOption(text string) bool {
	return strings.HasPrefix(text, "--") || slices.Contains(strings.Fields("-debug -debugger -dump-po-strings -dump-strings -help "+
		"-login -noediting -noprofile -norc -posix -pretty-print -protected -restricted -verbose -version -wordexp"), text)
}

// mayBeOption tells whether a shell may take a word for options.
func mayBeOption(w word) bool {
	switch {
	case w.stream || w.text == "":
		return !w.static
	case w.text[0] == '+':
		return len(w.text) > 1 || !w.static
	}
	return w.text[0] == '-'
}

// harmless are builtins that an allow list need not name: they change nothing but the shell itself.
func harmless(program string) bool {
	return slices.Contains([]string{"!", ":", "[", "[[", "break", "cd", "continue", "declare", "echo", "exit", "export", "false", "local",
		"printf", "pwd", "read", "readonly", "return", "set", "shift", "test", "true", "typeset", "umask", "unset", "wait"}, program)
}
