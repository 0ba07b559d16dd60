package ui

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"path"
	"time"

	"github.com/docker/go-units"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/workflow"
)

// formats are the functions of the templates.
var formats = template.FuncMap{
	"add": func(a, b int) int { return a + b }, "age": age, "base": path.Base, "bytes": byteSize, "cost": cost,
	"count": count, "json": jsonText, "milli": time.Time.UnixMilli, "plural": app.Counted, "seg": url.PathEscape,
	"sign": sign, "step": stepID, "took": took, "usage": usageText,
	"verdict": verdict, "quote": hint.Quote,
	"clip":  func(text string) value { return newValue("", text, "") },
	"entry": func(e workflow.Entry) value { return cutValue("", jsonText(e), rawURL(e, "entry"), maxSaid) },
	"cut":   func(most int, s string) string { return sanitize.Cut(sanitize.Line(s), most) },
	"letter": func(kind string) string {
		return map[string]string{"agent": "A", "model": "M", "tool": "T", "other": "S"}[kind]
	},
	"left":  func(t time.Time) string { return took(time.Until(t)) },
	"ms":    func(n int64) string { return took(time.Duration(n) * time.Millisecond) },
	"stamp": func(t time.Time) string { return t.Local().Format(time.DateTime) },
}

// took returns a duration with about three digits, for example "1.2 s" or "3:07".
func took(d time.Duration) string {
	switch {
	case d <= 0:
		return "–"
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(d.Milliseconds(), 1))
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d:%02d", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d:%02d:%02d", d/time.Hour, d%time.Hour/time.Minute, d%time.Minute/time.Second)
}

// age returns how long ago a time was, without seconds, to change the page less often.
func age(t time.Time) string {
	switch d := time.Since(t); {
	case t.IsZero():
		return "–"
	case d < time.Minute:
		return "now"
	default:
		return app.Age(d) + " ago"
	}
}

func byteSize(n int64) string {
	return units.CustomSize("%.3g %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB"})
}

// count returns a number with at most about four characters.
func count(n int64) string {
	return units.CustomSize("%.3g%s", float64(n), 1000, []string{"", "k", "M", "G"})
}

func cost(usd *float64) string {
	if usd == nil {
		return "–"
	}
	return fmt.Sprintf("$%.4f", *usd)
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

// maxDepth is the maximum depth of indented JSON, because the size of the indentation is quadratic in the depth.
const maxDepth = 32

func jsonText(v any) string {
	var b bytes.Buffer
	raw, err := sanitize.JSON(v)
	if err == nil && depth(raw) > maxDepth {
		return string(raw)
	}
	if err = cmp.Or(err, json.Indent(&b, raw, "", "  ")); err != nil {
		return "cannot show the value: " + err.Error()
	}
	return b.String()
}

// depth returns the depth of valid JSON.
func depth(raw []byte) (most int) {
	at, quoted := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && (c == '[' || c == '{'):
			at++
			most = max(most, at)
		case !quoted && (c == ']' || c == '}'):
			at--
		}
	}
	return most
}

// sign returns the character for a state, to distinguish states without colors.
func sign(state string) string {
	return cmp.Or(map[string]string{
		app.RunRunning: "●", app.RunQueued: "◌", app.RunInterrupted: "‖", waits: "◆", string(workflow.Succeeded): "✓",
		string(workflow.Failed): "✗", string(workflow.Cancelled): "⊘", string(workflow.TimedOut): "◷", "skipped": "–",
		"stopped": "‖", "kept": "▪", "created": "◌", "removing": "◌", "lost": "✗", "completed": "✓", "killed": "⊘",
	}[state], "?")
}
