package main

import "strings"

// What is shown of what a failed command wrote.
const (
	lastWordsLines = 10
	lastWordsWidth = 200 // runes of a line
)

// lastWords returns the last lines that a command of a workflow wrote, by the output of its step: of standard error, else of
// standard output.
func lastWords(output any) []string {
	fields, _ := output.(map[string]any)
	text := ""
	for _, stream := range []string{"stderr", "stdout"} {
		if s, _ := fields[stream].(string); strings.TrimSpace(s) != "" {
			text = strings.TrimRight(s, " \t\r\n")
			break
		}
	}
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	lines = lines[max(0, len(lines)-lastWordsLines):]
	for i, line := range lines {
		lines[i] = clip(strings.TrimRight(line, "\r"), lastWordsWidth)
	}
	return lines
}
