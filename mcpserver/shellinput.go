package mcpserver

import (
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Why a shell's commands cannot be known.
const (
	whyPipe     = "a shell gets its commands through a pipe"
	whyComputed = "a shell's commands are computed when the command runs"
	whyLater    = "a shell gets its commands later, through sandbox_exec_write"
	whyShared   = "a shell takes its commands from what other commands read, too"
	whyScript   = "a script is computed when the command runs; put it in single quotes, and values into its arguments"
	whyFunction = "a shell gets its commands from what a function is given"
)

// input is the standard input of commands. Its zero value is an input of which nothing is known and nothing asked, such
// as a file's.
type input struct {
	text  *string // what is read, where that is known
	why   string  // why a shell's commands cannot be known when it takes them from here; empty where they can
	shell bool    // a shell takes its commands from here
	other bool    // another program may read here
}

// given is the input of a call that gives stdin at once, or more of it later.
func given(stdin *string, later bool) *input {
	if later {
		return &input{why: whyLater}
	}
	return &input{text: stdin}
}

// redirected gives what a statement with these redirections reads.
func redirected(redirs []*syntax.Redirect, in *input) *input {
	for _, r := range redirs {
		if r.N != nil && strings.Trim(r.N.Value, "0") != "" {
			continue
		}
		switch r.Op {
		case syntax.Hdoc, syntax.DashHdoc:
			in = inputText(literal(r))
		case syntax.WordHdoc:
			in = inputText(wordOf(r.Word))
		case syntax.RdrIn, syntax.RdrInOut:
			switch placeOf(wordOf(r.Word)) {
			case placeFile:
				in = &input{}
			case placeElse:
				in = &input{why: whyComputed}
			}
		case syntax.DplIn, syntax.DplOut:
			same := r.Op == syntax.DplOut && r.N == nil // that is the output
			if w := wordOf(r.Word); !same && (!w.static || w.text != "0") {
				in = &input{why: whyComputed}
			}
		}
	}
	return in
}

func inputText(w word) *input {
	if !w.static {
		return &input{why: whyComputed}
	}
	return &input{text: &w.text}
}

// literal gives a here-document as it stands. Without quotes around its delimiter a backslash means something, which is
// left to the shell.
func literal(r *syntax.Redirect) word {
	if r.Hdoc == nil {
		return word{static: true}
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
			return word{}
		}
		b.WriteString(lit.Value)
	}
	return word{text: b.String(), static: true}
}

// place is where a file's name leads.
type place int

const (
	placeFile  place = iota // to a file, as far as that is known
	placeStdin              // to standard input
	placeElse               // to another descriptor, or to what other commands write
)

func placeOf(name word) place {
	file := path.Clean(name.text)
	if strings.HasPrefix(file, "../") { // enough of them lead to the root
		file = "/" + strings.ReplaceAll(file, "../", "")
	}
	device := strings.HasPrefix(file+"/", "/dev/") || strings.HasPrefix(file+"/", "/proc/")
	switch {
	case name.stream || !name.static && device:
		return placeElse
	case file == "/dev/stdin" || file == "/dev/fd/0" || file == "/proc/self/fd/0":
		return placeStdin
	case strings.HasPrefix(file, "/dev/fd/"), strings.HasPrefix(file, "/dev/tcp/"), strings.HasPrefix(file, "/dev/udp/"),
		strings.HasPrefix(file, "/proc/"):
		return placeElse
	}
	return placeFile
}
