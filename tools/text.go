package tools

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/sandbox"
)

// Bounds of command output in one answer, per stream. A fifth is the beginning, the rest the end: what went wrong
// mostly stands there.
const (
	maxStreamChars = 30_000
	noticeChars    = 500 // room for notices
	headShare      = 5
)

// excerpt returns how much of the beginning and of the end of a stream makes at most chars characters with notices.
func excerpt(chars int64) (head, tail int) {
	room := int(max(chars-noticeChars, chars/2))
	return room / headShare, room - room/headShare
}

// streamText is one stream as a model sees it.
type streamText struct {
	text      string
	truncated bool
	path      string // of the whole output, when truncated
}

// show makes text of one stream: cut on line and character edges, invalid UTF-8 replaced, all of it visibly. keep is
// true when the sandbox, and with it the file with the whole output, outlives the answer.
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

// lineSlack is how far an edge is moved to meet the end of a line.
const lineSlack = 4

// cutHead cuts back to the end of a line, or of a character when lines are long.
func cutHead(b []byte) []byte {
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 && len(b)-i-1 <= len(b)/lineSlack {
		return b[:i+1]
	}
	return wholeRunes(b)
}

// cutTail cuts forward to the beginning of a line, or of a character.
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

// wholeRunes takes a character that is cut in two off the end.
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

// validText replaces each byte that is not UTF-8 and returns how many there were.
func validText(b []byte) (text string, bad int) {
	text = string([]rune(string(b)))
	return text, (len(text) - len(b)) / (len("\uFFFD") - 1)
}

func invalidNotice(bad int, keep bool) string {
	switch {
	case bad == 0:
		return ""
	case keep:
		return fmt.Sprintf("\n[workcell: %d bytes that are not UTF-8 are shown as \uFFFD; sandbox_exec_read gives the exact bytes]\n", bad)
	}
	return fmt.Sprintf("\n[workcell: %d bytes that are not UTF-8 are shown as \uFFFD]\n", bad)
}

// outcomeNotice reports a timeout, and the limits that a command reached; empty for neither.
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

// limitNotice names the limits that a command reached, and what to do; empty for none.
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

// withNotice puts a notice on a line of its own after text.
func withNotice(text, notice string) string {
	if notice != "" && text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + notice
}

// exitCode is absent while a command runs; a signal counts as shells count it.
func exitCode(status sandbox.ExecState, code int, signal string) *int {
	if status == sandbox.ExecRunning {
		return nil
	}
	if signal != "" {
		n := slices.Index(sandbox.Signals(), signal)
		if n < 0 {
			return nil
		}
		code = 129 + n
	}
	return &code
}
