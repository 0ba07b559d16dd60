// Package suggest finds the known word that a misspelled word probably stands for, for example timeout for timout.
package suggest

import (
	"fmt"
	"strings"
)

// Closest returns the closest known word to word. It ignores case, hyphens, underscores, and spaces. It returns false
// if no word is close enough: about a third of the word can differ, or one word can be the start of the other. If
// several words are equally close, it returns the first of them.
func Closest(word string, known []string) (string, bool) {
	folded := fold(word)
	if folded == "" || len(folded) > 64 {
		return "", false
	}
	best, bestDistance := "", limit(folded)+1
	for _, k := range known {
		f := fold(k)
		d := distance(folded, f)
		if min(len(f), len(folded)) > 2 && (strings.HasPrefix(f, folded) || strings.HasPrefix(folded, f)) {
			d = min(d, limit(folded))
		}
		if d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best, best != ""
}

// Hint returns a question whether the closest known word was meant. If no word is close, it lists the known words,
// unless there are too many.
func Hint(word string, known []string) string {
	if near, ok := Closest(word, known); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if len(known) == 0 || len(known) > 30 {
		return ""
	}
	return "available: " + strings.Join(known, ", ")
}

// limit returns the maximum distance between a word of this length and another word.
func limit(word string) int {
	switch n := len(word); {
	case n < 4:
		return 1
	case n < 7:
		return 2
	default:
		return n / 3
	}
}

// fold removes differences in case and separators.
func fold(s string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
}

// distance returns the number of bytes inserted, deleted, changed, or swapped with a neighbor between a and b.
func distance(a, b string) int {
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
