package hint

import (
	"regexp"
	"strings"
)

// plainWord matches words without a special meaning in a shell.
var plainWord = regexp.MustCompile(`^[\w%+,./:@=-]+$`)

// Quote returns a word of a shell command in a hint. It quotes words with special characters.
func Quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
