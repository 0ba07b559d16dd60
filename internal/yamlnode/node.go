package yamlnode

import (
	"fmt"
	"iter"
	"strconv"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Pairs iterates over the keys of a mapping and their values, aliases followed. Other nodes have none.
func Pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], Follow(n.Content[i+1])) {
				return
			}
		}
	}
}

// Items iterates over the entries of a list, aliases followed. Other nodes have none.
func Items(n *yaml.Node) iter.Seq[*yaml.Node] {
	return func(yield func(*yaml.Node) bool) {
		for i := 0; n.Kind == yaml.SequenceNode && i < len(n.Content); i++ {
			if !yield(Follow(n.Content[i])) {
				return
			}
		}
	}
}

// Follow returns what an alias stands for, and other nodes as they are.
func Follow(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// IsNull reports whether n is an explicit or an empty null.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Kind names the type of n for people.
func Kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.ShortTag() {
	case "!!null":
		return "null"
	case "!!bool":
		return n.Value
	case "!!int", "!!float":
		return "the number " + sanitize.Clip(n.Value)
	}
	return "text"
}

// Duration returns the time that n says, as 90s, 30m or 1h30m; false, and what to write, when it says none.
func Duration(n *yaml.Node) (d time.Duration, hint string, ok bool) {
	d, err := time.ParseDuration(n.Value)
	if n.Kind == yaml.ScalarNode && err == nil {
		return d, "", true
	}
	if _, err := strconv.ParseFloat(n.Value, 64); err == nil {
		return 0, fmt.Sprintf("add a unit, for example %ss", n.Value), false
	}
	return 0, `write it as "90s", "30m" or "1h30m"`, false
}
