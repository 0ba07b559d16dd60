package ui

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/workflow"
)

// formats are the functions of the templates.
var formats = template.FuncMap{
	"age": age, "bytes": byteSize, "cost": cost, "count": count, "cut": cut,
	"json": jsonText, "milli": time.Time.UnixMilli, "seg": url.PathEscape, "sign": sign, "stamp": stamp, "took": took, "usage": usageText,
	"add": func(a, b int) int { return a + b }, "plural": app.Counted,
	"base": path.Base, "letter": func(kind string) string {
		return map[string]string{"agent": "A", "model": "M", "tool": "T", "other": "S"}[kind]
	}, "ms": func(n int64) string { return took(time.Duration(n) * time.Millisecond) },
}

func byteSize(n int64) string {
	return units.CustomSize("%.3g %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB"})
}

// took returns a duration with about three digits.
func took(d time.Duration) string {
	switch {
	case d <= 0:
		return "–"
	case d < time.Second:
		return strconv.FormatInt(max(d.Milliseconds(), 1), 10) + " ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d:%02d", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d:%02d:%02d", d/time.Hour, d%time.Hour/time.Minute, d%time.Minute/time.Second)
}

func stamp(t time.Time) string { return t.Local().Format(time.DateTime) }

// age returns how long ago a time was.
func age(t time.Time) string {
	switch d := time.Since(t); {
	case t.IsZero():
		return "–"
	case d < time.Minute:
		return "now"
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", d/time.Hour)
	default:
		return fmt.Sprintf("%d days ago", d/(24*time.Hour))
	}
}

// count returns a number with at most about four characters.
func count(n int64) string {
	switch {
	case n < 1000:
		return strconv.FormatInt(n, 10)
	case n < 10_000:
		return strconv.FormatFloat(float64(n)/1e3, 'f', 1, 64) + "k"
	case n < 1_000_000:
		return strconv.FormatInt(n/1000, 10) + "k"
	}
	return strconv.FormatFloat(float64(n)/1e6, 'f', 1, 64) + "M"
}

func cost(usd *float64) string {
	switch {
	case usd == nil:
		return "–"
	case *usd < 0.1:
		return fmt.Sprintf("$%.4f", *usd)
	}
	return fmt.Sprintf("$%.2f", *usd)
}

func usageText(u *workflow.Usage) string {
	if u == nil || u.In+u.Out == 0 {
		return "–"
	}
	text := count(u.In) + "→" + count(u.Out)
	if u.Estimated {
		text = "≈" + text
	}
	return text
}

func cut(most int, s string) string { return sanitize.Cut(sanitize.Line(s), most) }

func jsonText(v any) string {
	raw, err := sanitize.JSON(v)
	if err != nil {
		return "cannot show the value: " + err.Error()
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(json.RawMessage(raw)); err != nil {
		return string(raw)
	}
	return strings.TrimRight(b.String(), "\n")
}

// sign returns the character for a state, so that states differ not only by color.
func sign(state string) string {
	s, ok := map[string]string{
		app.RunRunning: "●", app.RunQueued: "◌", app.RunInterrupted: "‖", string(workflow.Succeeded): "✓", string(workflow.Failed): "✗",
		string(workflow.Cancelled): "⊘", string(workflow.TimedOut): "◷", string(workflow.StatusSkipped): "–",
		"stopped": "‖", "kept": "▪", "created": "◌", "removing": "◌", "lost": "✗", "completed": "✓", "killed": "⊘",
	}[state]
	if !ok {
		return "?"
	}
	return s
}
