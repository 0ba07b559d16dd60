package mcpserver

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

func wordsOf(list []*syntax.Word) []word {
	out := make([]word, len(list))
	for i, w := range list {
		out[i] = wordOf(w)
	}
	return out
}

// wordOf gives what a shell makes of a word, when that can be known.
func wordOf(w *syntax.Word) word {
	if w == nil {
		return word{static: true}
	}
	var b strings.Builder
	for _, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			text, ok := unquoted(part.Value)
			if !ok {
				return word{}
			}
			b.WriteString(text)
		case *syntax.SglQuoted:
			if part.Dollar {
				return word{} // $'…' has escapes, and is something else to other shells
			}
			b.WriteString(part.Value)
		case *syntax.DblQuoted:
			if part.Dollar {
				return word{}
			}
			for _, inner := range part.Parts {
				lit, ok := inner.(*syntax.Lit)
				if !ok {
					return word{}
				}
				b.WriteString(doubleQuoted(lit.Value))
			}
		default:
			return word{}
		}
	}
	return word{text: b.String(), static: true}
}

// unquoted takes the backslashes out of unquoted text; false when the shell would make other words of it.
func unquoted(text string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '\\':
			if i++; i < len(text) && text[i] != '\n' {
				b.WriteByte(text[i])
			}
		case '*', '?':
			return "", false
		case '[':
			if strings.Contains(text[i:], "]") {
				return "", false
			}
			b.WriteByte(c)
		case '{':
			if braceList(text[i:]) {
				return "", false
			}
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), true
}

// braceList tells whether bash would make several words of {a,b} or {1..3}.
func braceList(text string) bool {
	end := strings.IndexByte(text, '}')
	return end > 0 && (strings.Contains(text[:end], ",") || strings.Contains(text[:end], ".."))
}

// doubleQuoted takes the backslashes out that count between double quotes.
func doubleQuoted(text string) string {
	var b strings.Builder
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
	return b.String()
}

// wrapper says how a program that runs another one takes its own arguments.
type wrapper struct {
	values   string // short options that take a value
	long     bool   // long options take their value after a blank, too
	operands int    // arguments before the command
	assigns  bool   // NAME=VALUE before the command
}

// wrappers are programs that run the command in their arguments.
func wrappers() map[string]wrapper {
	return map[string]wrapper{
		"env": {values: "uCS", assigns: true}, "sudo": {values: "ugpCDhRrtT", assigns: true}, "doas": {values: "uC"},
		"nice": {values: "n"}, "ionice": {values: "cn"}, "nohup": {}, "setsid": {}, "stdbuf": {values: "ioe"},
		"timeout": {values: "ks", operands: 1}, "time": {values: "fo"}, "exec": {values: "a"}, "command": {}, "builtin": {},
		"xargs": {values: "IEnLPsad"}, "busybox": {}, "toybox": {}, "chroot": {operands: 1}, "unshare": {}, "strace": {values: "eops"},
		"chrt": {operands: 1}, "taskset": {operands: 1}, "watch": {values: "n"}, "flock": {values: "wE", operands: 1}, "catchsegv": {},
	}
}

// unwrap gives the command that wrappers around it run in the end; empty when a wrapper runs none.
func unwrap(words []word) []word {
	known := wrappers()
	for len(words) > 0 && words[0].static {
		w, ok := known[path.Base(words[0].text)]
		if !ok {
			return words
		}
		words = w.skip(words[1:])
	}
	return words
}

// skip takes a wrapper's own arguments away.
func (w wrapper) skip(args []word) []word {
	operands := w.operands
	for len(args) > 0 {
		text := args[0].text
		switch {
		case !args[0].static:
			if operands == 0 {
				return args
			}
			operands--
		case text == "--":
			return args[min(1+operands, len(args)):]
		case strings.HasPrefix(text, "--"), len(text) == 1 && text == "-":
		case strings.HasPrefix(text, "-"):
			if strings.ContainsRune(w.values, rune(text[len(text)-1])) && len(text) == 2 && len(args) > 1 {
				args = args[1:]
			}
		case w.assigns && strings.Contains(text, "="):
		case operands > 0:
			operands--
		default:
			return args
		}
		args = args[1:]
	}
	return nil
}

// harmless are builtins that an allow list need not name: they change nothing but the shell itself.
func harmless(program string) bool {
	return slices.Contains([]string{":", "[", "break", "cd", "continue", "echo", "exit", "export", "false", "printf", "pwd", "read",
		"return", "set", "shift", "test", "true", "umask", "unset", "wait"}, program)
}
