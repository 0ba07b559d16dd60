package scripted

import (
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with a script file.
type Problem struct {
	File    string
	Line    int // from 1; 0 when it is about the whole file
	Column  int // from 1; 0 when unknown
	Message string
}

// Error returns "file:line:column: message".
func (p *Problem) Error() string {
	switch {
	case p.Line == 0:
		return p.File + ": " + p.Message
	case p.Column == 0:
		return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Message)
	default:
		return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
	}
}

// Problems are all the things that are wrong with a script file, in the order of the file. It is the error of [Parse].
type Problems []*Problem

// Error returns one problem per line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}
