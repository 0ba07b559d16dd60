package session

import (
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// maxPrograms bounds the programs that a guest reports.
const maxPrograms = 64

// What names of interpreters and of signals look like.
var (
	programName = regexp.MustCompile(`\A[A-Za-z0-9_.+-]{1,32}\z`)
	signalName  = regexp.MustCompile(`\ASIG[A-Z0-9+-]*\z`)
)

// cleanHello keeps of a guest's hello what may be shown to people and models.
func cleanHello(h wire.Hello) wire.Hello {
	if !cleanPath(h.Workdir) {
		h.Workdir = backend.Workdir
	}
	var programs []string
	for _, name := range h.Programs {
		if len(programs) < maxPrograms && programName.MatchString(name) {
			programs = append(programs, name)
		}
	}
	h.Programs = programs
	return h
}

// cleanPath reports whether a guest's path is absolute, plain and of a sane length.
func cleanPath(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && len(p) <= maxPathBytes && cleanText(p) == p
}

// cleanSignal returns a guest's name of a signal, empty when it is none.
func cleanSignal(name string) string {
	if !signalName.MatchString(name) {
		return ""
	}
	return name
}

// maxAge bounds what a guest may report as an age.
const maxAge = 100 * 365 * 24 * time.Hour

// execStatus converts what the guest reports of a command.
func execStatus(w wire.ExecStatus) ExecStatus {
	st := ExecStatus{
		ExecID: w.ExecID, Status: ExecState(w.State), ExitCode: w.ExitCode, Signal: cleanSignal(w.Signal),
		Duration:    time.Duration(w.DurationMicros) * time.Microsecond,
		StdoutBytes: w.StdoutBytes, StderrBytes: w.StderrBytes, PeakRSSBytes: w.PeakRSSBytes, Leaked: w.Leaked,
		QuotaExceeded: w.QuotaExceeded, QuotaOutside: w.QuotaExceeded && w.QuotaOutside, Terminal: w.Terminal,
	}
	if w.EndedMillis > 0 || st.Status == ExecRunning {
		st.Age = st.Duration + time.Duration(min(w.EndedMillis, maxAge.Milliseconds()))*time.Millisecond
	}
	return st
}

// output converts one stream's part of an answer.
func (s *Session) output(o wire.Output) Output {
	out := Output{Head: o.Head, Tail: o.Tail, Omitted: o.Omitted, Total: o.Total, PathCut: o.PathCut}
	if cleanPath(o.Path) && strings.HasPrefix(o.Path, s.hello.Workdir+"/") {
		out.Path = o.Path
	}
	return out
}
