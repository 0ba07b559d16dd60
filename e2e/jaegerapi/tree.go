package jaegerapi

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// WriteTree writes the trace as an indented tree: duration, name, and those
// attributes that show names.
func (t *Trace) WriteTree(w io.Writer, show ...string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "trace %s, %d spans\n", t.ID, len(t.Spans))
	for _, r := range t.Roots {
		r.write(&b, "", "", show)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("jaegerapi: %w", err)
	}
	return nil
}

func (s *Span) write(b *strings.Builder, first, rest string, show []string) {
	fmt.Fprintf(b, "%9s  %s%s", s.Duration.Round(10*time.Microsecond), first, s.Name)
	for _, k := range show {
		if v, ok := s.Tags[k]; ok {
			fmt.Fprintf(b, "  %s=%s", k[strings.LastIndexByte(k, '.')+1:], v)
		}
	}
	if s.Tags["error"] == "true" {
		b.WriteString("  ERROR")
	}
	b.WriteByte('\n')
	for i, c := range s.Children {
		if i == len(s.Children)-1 {
			c.write(b, rest+"└─ ", rest+"   ", show)
		} else {
			c.write(b, rest+"├─ ", rest+"│  ", show)
		}
	}
}
