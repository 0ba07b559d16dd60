package session

import (
	"path"
	"strings"
	"unicode"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Bounds of what a guest reports of itself and of a command.
const (
	maxPrograms    = 64
	maxProgramName = 32
)

// cleanHello keeps of a guest's hello what may be shown to people and models.
func cleanHello(h wire.Hello) wire.Hello {
	if !cleanPath(h.Workdir) {
		h.Workdir = backend.Workdir
	}
	var programs []string
	for _, name := range h.Programs {
		if len(programs) < maxPrograms && name != "" && len(name) <= maxProgramName && strings.IndexFunc(name, notInProgram) < 0 {
			programs = append(programs, name)
		}
	}
	h.Programs = programs
	return h
}

// notInProgram reports whether r has no place in the name of an interpreter.
func notInProgram(r rune) bool {
	return r > unicode.MaxASCII || !keyByte(byte(r)) && r != '+'
}

// cleanPath reports whether a guest's path is absolute, plain and of a sane length.
func cleanPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && len(p) <= maxPathBytes && cleanText(p) == p
}

// cleanSignal returns a guest's name of a signal when it is one.
func cleanSignal(name string) string {
	if !strings.HasPrefix(name, "SIG") || strings.IndexFunc(name, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '+' && r != '-'
	}) >= 0 {
		return ""
	}
	return name
}

// output converts one stream's part of an answer.
func (s *Session) output(o wire.Output) Output {
	out := Output{Head: o.Head, Tail: o.Tail, Omitted: o.Omitted, Total: o.Total, PathCut: o.PathCut}
	if cleanPath(o.Path) && strings.HasPrefix(o.Path, s.hello.Workdir+"/") {
		out.Path = o.Path
	}
	return out
}
