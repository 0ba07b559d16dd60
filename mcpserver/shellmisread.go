package mcpserver

import (
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// whyMisread is why what the parser makes of a script is not relied on. All of it is rare in what people write.
const whyMisread = "shells read the command in different ways; write its quotes, comments and here-documents in a plainer way"

// misread tells whether shells may read something below a node otherwise than the parser did. Offsets of the node are
// those of script.
func misread(node syntax.Node, script string) bool {
	found := false
	numbers := map[syntax.Node]bool{} // arithmetic expressions that are no node of their own
	within := []bool{false}           // for each node above: it is part of an arithmetic expression
	syntax.Walk(node, func(n syntax.Node) bool {
		if n == nil {
			within = within[:len(within)-1]
			return true
		}
		number := within[len(within)-1] || numbers[n]
		switch n := n.(type) {
		case *syntax.ArithmExp, *syntax.ArithmCmd:
			number = true
		case *syntax.CmdSubst, *syntax.ProcSubst:
			number = false
		case *syntax.Word:
			found = found || number && hides(n.Parts)
		case *syntax.Assign:
			numbers[n.Index] = true
		case *syntax.ParamExp:
			numbers[n.Index] = true
			if n.Slice != nil {
				numbers[n.Slice.Offset], numbers[n.Slice.Length] = true, true
			}
		default:
			found = found || oddText(n, script)
		}
		if !found {
			within = append(within, number)
		}
		return !found
	})
	return found
}

// oddText tells whether shells may find the end of a comment, of a here-document or of quotes elsewhere than the parser
// did.
func oddText(n syntax.Node, script string) bool {
	switch n := n.(type) {
	case *syntax.Comment:
		return !isComment(n, script)
	case *syntax.Redirect:
		return (n.Op == syntax.Hdoc || n.Op == syntax.DashHdoc) && (endsElsewhere(n, script) || n.Hdoc != nil && quotesInQuotes(n.Hdoc.Parts))
	case *syntax.SglQuoted: // there is no \' in '…'
		return n.Dollar && strings.Contains(n.Value, `\'`)
	case *syntax.DblQuoted:
		return quotesInQuotes(n.Parts)
	}
	return false
}

// isComment tells whether a comment is one to shells, too, for sure: its # begins a word, and no backslash joins the next
// line to what stands before it.
func isComment(c *syntax.Comment, script string) bool {
	before := script[:min(int(c.Hash.Offset()), len(script))]
	for strings.HasSuffix(before, "\\\n") {
		before = before[:len(before)-2]
	}
	blank := strings.TrimRight(before, " \t")
	if blank == "" || strings.HasSuffix(blank, "\n") {
		return true
	}
	return strings.ContainsRune(" \t;&|(<>", rune(before[len(before)-1])) && !strings.HasSuffix(strings.TrimRight(c.Text, "\n"), "\\")
}

// endsElsewhere tells whether a shell may find the end of a here-document where the parser did not: bash takes a line that
// only begins with the delimiter when a bracket follows, and a delimiter that is divided by a backslash and a newline.
func endsElsewhere(r *syntax.Redirect, script string) bool {
	delimiter, plain := delimiterOf(r.Word)
	if !plain {
		return true
	}
	if r.Hdoc == nil {
		return false
	}
	from, to := int(r.Hdoc.Pos().Offset()), int(r.Hdoc.End().Offset())
	if from > to || to > len(script) {
		return true
	}
	for strings.HasSuffix(script[:from], "\\\n") {
		from -= 2
	}
	line, joined := "", false
	for part := range strings.Lines(script[from:to]) {
		part = strings.TrimSuffix(part, "\n")
		line += strings.TrimLeft(part, "\t")
		rest, begins := strings.CutPrefix(line, delimiter)
		if begins && (strings.Contains(rest, ")") || rest == "" && joined) {
			return true
		}
		if joined = strings.HasSuffix(part, "\\"); !joined {
			line = ""
		} else if line = strings.TrimRight(line, "\\"); len(line) > len(delimiter) {
			line = line[:len(delimiter)+1] // what is to come changes nothing any more
		}
	}
	return false
}

// delimiterOf gives the delimiter of a here-document; plain is false where shells differ in what it is.
func delimiterOf(w *syntax.Word) (text string, plain bool) {
	for _, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.Lit:
			text += unescaped(part.Value)
		case *syntax.SglQuoted:
			if part.Dollar {
				return "", false
			}
			text += part.Value
		case *syntax.DblQuoted:
			var b strings.Builder
			if !doubleQuoted(&b, part) || strings.Contains(b.String(), "\\") {
				return "", false
			}
			text += b.String()
		default:
			return "", false
		}
	}
	return text, !strings.Contains(text, "$")
}

// quotesInQuotes tells whether single quotes that are none, as they stand in an expansion between double quotes, hide
// anything: "${x:-'$(y)'}" runs y.
func quotesInQuotes(parts []syntax.WordPart) bool {
	for _, part := range parts {
		p, ok := part.(*syntax.ParamExp)
		if !ok || p.Exp == nil || p.Exp.Word == nil {
			continue
		}
		switch p.Exp.Op {
		case syntax.AlternateUnset, syntax.AlternateUnsetOrNull, syntax.DefaultUnset, syntax.DefaultUnsetOrNull,
			syntax.ErrorUnset, syntax.ErrorUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
			if hides(p.Exp.Word.Parts) || quotesInQuotes(p.Exp.Word.Parts) {
				return true
			}
		}
	}
	return false
}

// hides tells whether single quotes stand around what is not just text without them.
func hides(parts []syntax.WordPart) bool {
	for _, part := range parts {
		if q, ok := part.(*syntax.SglQuoted); ok && strings.ContainsAny(q.Value, "$`}\"\\") {
			return true
		}
	}
	return false
}
