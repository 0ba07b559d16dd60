package yamlnode

import (
	"iter"
	"strings"

	"gopkg.in/yaml.v3"
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
		return "nothing"
	case "!!bool":
		return n.Value
	case "!!int", "!!float":
		return "the number " + Clip(n.Value)
	}
	return "text"
}

// Clip shortens text of a file for a message.
func Clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
