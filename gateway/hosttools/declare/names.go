package declare

import (
	"strconv"
	"strings"
)

// maxTypes bounds how many types a declaration writes: a few definitions that use each other often would write without end.
const maxTypes = 4000

// names are the types of one declaration.
type names struct {
	taken map[string]bool
	types int
}

func newNames(reserved string) *names { return &names{taken: set(reserved)} }

// more counts a type, and reports whether there is room for it.
func (n *names) more() bool {
	n.types++
	return n.types <= maxTypes
}

// take returns a type's name in camel case that nothing else has.
func (n *names) take(hint string) string {
	var b strings.Builder
	for _, word := range strings.FieldsFunc(hint, func(r rune) bool { return !letterOrDigit(r) }) {
		if b.Len() < 60 {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:min(len(word), 60)])
		}
	}
	name := b.String()
	if name == "" || '0' <= name[0] && name[0] <= '9' {
		name = "T" + name
	}
	for i := 2; n.taken[name]; i++ {
		name = strings.TrimRight(name, "0123456789") + strconv.Itoa(i)
	}
	n.taken[name] = true
	return name
}

// unique returns words without those that came before.
func unique(words []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, w := range words {
		if !seen[w] {
			seen[w] = true
			out = append(out, w)
		}
	}
	return out
}
