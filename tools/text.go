package tools

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/sandbox"
)

// Limits for command output in one result, per stream. One fifth is the beginning and the rest is the end, because
// errors are usually at the end.
const (
	maxStreamChars = 30_000
	noticeChars    = 500 // reserved for notices
	headShare      = 5
)

// excerpt returns the sizes of the beginning and the end of a stream. Together with notices, they have at most chars
// characters.
func excerpt(chars int64) (head, tail int) {
	room := int(max(chars-noticeChars, chars/2))
	return room / headShare, room - room/headShare
}

// streamText is the text of one stream for a model.
type streamText struct {
	text      string
	truncated bool
	path      string // file with the whole output, if truncated
}

// show converts a stream to text. It cuts the output at line or character boundaries, replaces invalid UTF-8, and adds
// a notice for both. keep reports whether the sandbox still exists after the call, and with it the file with the whole
// output.
func show(o sandbox.Output, stream string, keep bool) streamText {
	if o.Omitted <= 0 {
		text, bad := validText(o.Bytes())
		return streamText{text: text + invalidNotice(bad, keep)}
	}
	head, tail := cutHead(o.Head), cutTail(o.Tail)
	omitted := o.Total - int64(len(head)) - int64(len(tail))
	headText, badHead := validText(head)
	tailText, badTail := validText(tail)
	out := streamText{truncated: true}
	notice := fmt.Sprintf("[workcell: %d of %d bytes of %s omitted here", omitted, o.Total, stream)
	switch {
	case !keep:
		notice += "; print less, or print it in parts"
	case o.Path != "" && o.PathCut:
		notice += "; the saved part is in " + o.Path
		out.path = o.Path
	case o.Path != "":
		notice += "; the full output is in " + o.Path
		out.path = o.Path
	}
	if headText != "" && !strings.HasSuffix(headText, "\n") {
		headText += "\n"
	}
	out.text = headText + notice + "]\n" + tailText + invalidNotice(badHead+badTail, keep)
	return out
}

// lineSlack limits how far a cut moves to reach the end of a line: to at most 1/lineSlack of the text.
const lineSlack = 4

// cutHead removes the incomplete last line of b. If the line is long, it removes only an incomplete character.
func cutHead(b []byte) []byte {
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 && len(b)-i-1 <= len(b)/lineSlack {
		return b[:i+1]
	}
	return wholeRunes(b)
}

// cutTail removes the incomplete first line of b. If the line is long, it removes only an incomplete character.
func cutTail(b []byte) []byte {
	if i := bytes.IndexByte(b, '\n'); i >= 0 && i+1 < len(b) && i <= len(b)/lineSlack {
		return b[i+1:]
	}
	for n := 0; n < utf8.UTFMax-1 && n < len(b); n++ {
		if utf8.RuneStart(b[n]) {
			return b[n:]
		}
	}
	return b
}

// wholeRunes removes an incomplete character from the end of b.
func wholeRunes(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if end := b[len(b)-n:]; utf8.RuneStart(end[0]) {
			if !utf8.FullRune(end) {
				return b[:len(b)-n]
			}
			break
		}
	}
	return b
}

// validText replaces each invalid UTF-8 byte and returns the number of replaced bytes.
func validText(b []byte) (text string, bad int) {
	text = string([]rune(string(b)))
	return text, (len(text) - len(b)) / (len("\uFFFD") - 1)
}

func invalidNotice(bad int, keep bool) string {
	advice := ""
	switch {
	case bad == 0:
		return ""
	case keep:
		advice = "; sandbox_exec_read gives the exact bytes"
	}
	return fmt.Sprintf("\n[workcell: %d bytes that are not UTF-8 are shown as \uFFFD%s]\n", bad, advice)
}

// outcomeNotice returns a notice about a timeout or a reached limit. It is empty for other outcomes.
func outcomeNotice(res sandbox.ExecResult) (text string) {
	if res.Status == sandbox.ExecTimedOut {
		after := "at its timeout"
		if res.Timeout > 0 {
			after = fmt.Sprintf("after its timeout of %v", res.Timeout)
		}
		text = "[workcell: killed with all its children " + after + "; files it wrote are kept]\n"
	}
	return text + limitNotice(res)
}

// limitNotice returns a notice with the limits a command reached and advice for the model. It is empty if no limit was
// reached.
func limitNotice(res sandbox.ExecResult) string {
	advice := "use less at a time, or fewer processes"
	switch {
	case res.Limit == "":
		return ""
	case res.Status == sandbox.ExecQuotaKilled:
		advice = "all commands were killed; delete files before you write more"
	case res.QuotaExceeded:
		advice = "delete files before you write more"
	}
	return fmt.Sprintf("[workcell: %s; %s]\n", res.Limit, advice)
}

// withNotice appends a notice to text on a new line.
func withNotice(text, notice string) string {
	if notice != "" && text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + notice
}

// exitCode returns the exit code in shell convention, 128 + signal for signals. It returns nil while the command is
// running.
func exitCode(status sandbox.ExecState, code int, signal string) *int {
	n := slices.Index(sandbox.Signals(), signal)
	if status == sandbox.ExecRunning || signal != "" && n < 0 {
		return nil
	}
	if signal != "" {
		code = 129 + n
	}
	return &code
}
