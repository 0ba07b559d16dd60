package yamlnode

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Node is a node of a YAML document.
type Node = yaml.Node

// Kinds of nodes.
const (
	Mapping = yaml.MappingNode
	List    = yaml.SequenceNode
	Scalar  = yaml.ScalarNode
)

// Is reports whether n is a scalar with one of the tags.
func Is(n *Node, tags ...string) bool { return n.Kind == Scalar && slices.Contains(tags, n.ShortTag()) }

// Encode encodes a value as YAML.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := errors.Join(enc.Encode(v), enc.Close())
	return b.Bytes(), err
}

// Unmarshal decodes YAML without strict checks.
func Unmarshal(src []byte, v any) error { return yaml.Unmarshal(src, v) }

// Pairs iterates over the keys and values of a mapping and follows aliases. For other nodes, it yields nothing.
func Pairs(n *Node) iter.Seq2[*Node, *Node] {
	return func(yield func(key, value *Node) bool) {
		for i := 0; n.Kind == Mapping && i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i], Follow(n.Content[i+1])) {
				return
			}
		}
	}
}

// Items iterates over the entries of a list and follows aliases. For other nodes, it yields nothing.
func Items(n *Node) iter.Seq[*Node] {
	return func(yield func(*Node) bool) {
		for i := 0; n.Kind == List && i < len(n.Content); i++ {
			if !yield(Follow(n.Content[i])) {
				return
			}
		}
	}
}

// Follow returns the target of an alias. It returns other nodes unchanged.
func Follow(n *Node) *Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// IsNull reports whether n is an explicit or an empty null.
func IsNull(n *Node) bool { return Is(n, "!!null") }

// Kind returns the type of n for messages.
func Kind(n *Node) string {
	switch n.Kind {
	case Mapping:
		return "a mapping"
	case List:
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

// duration parses a duration, for example 90s, 30m, or 1h30m. If the scalar is invalid, it returns false and a hint.
func duration(n *Node) (d time.Duration, hint string, ok bool) {
	d, err := time.ParseDuration(n.Value)
	if n.Kind == Scalar && err == nil {
		return d, "", true
	}
	if _, err := strconv.ParseFloat(n.Value, 64); err == nil {
		return 0, fmt.Sprintf("add a unit, for example %ss", n.Value), false
	}
	return 0, `write it as "90s", "30m" or "1h30m"`, false
}
