package ui

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
)

var Bar = bar

// SetAway replaces awayTime.
func (o *Options) SetAway(d time.Duration) { o.away = d }

// SetBodyTimeout replaces bodyTimeout.
func (o *Options) SetBodyTimeout(d time.Duration) { o.body = d }

// OpenSecond opens the default engine while another engine is being opened.
func (s *Server) OpenSecond(ctx context.Context) error {
	s.opening <- struct{}{}
	defer func() { <-s.opening }()
	_, err := s.manager(ctx, "", time.Minute)
	return err
}

// Routes returns the kind of each route of the table, by pattern.
func (s *Server) Routes() map[string]string {
	out := map[string]string{}
	for _, r := range s.table() {
		out[r.pattern] = []string{"reads", "opens", "live", "acts"}[min(r.kind, acts)]
	}
	return out
}

// AssetBytes returns the size of all assets as they are sent.
func (s *Server) AssetBytes() (n int) {
	for _, a := range s.assets {
		n += len(a)
	}
	return n
}

// Send answers a request with a file.
func (s *Server) Send(w http.ResponseWriter, r *http.Request, f io.Reader) {
	if err := send(w, r, "file", f); err != nil {
		s.fail(w, r, err)
	}
}

// Output returns the number of shown and of hidden lines of a command.
func Output(read func(context.Context, sandbox.ReadRequest) (sandbox.ReadResult, error)) (shown, cut int, err error) {
	var p sandboxPage
	err = p.readOutput(context.Background(), read)
	return len(p.Lines), p.Cut, err
}

// Screen converts parts of output. Each line has the classes and the text of the spans.
func Screen(parts ...string) (lines []string) {
	var s screen
	for _, p := range parts {
		for _, l := range s.write([]byte(p)) {
			lines = append(lines, l.string())
		}
	}
	if last := s.last(); last != nil {
		lines = append(lines, last.string())
	}
	return lines
}

func (l line) string() string {
	var b strings.Builder
	for _, s := range l {
		if s.Class != "" {
			b.WriteString("[" + s.Class + "]")
		}
		b.WriteString(s.Text)
	}
	return b.String()
}

// Marks returns the lines of a hunk with brackets around their differences.
func Marks(h patch.Hunk) (list []string) {
	lines, _ := hunkLines(h, math.MaxInt)
	for _, l := range lines {
		list = append(list, fmt.Sprintf("%d %d %s%s[%s]%s", l.Old, l.New, l.Op, l.Before, l.Mid, l.After))
	}
	return list
}
