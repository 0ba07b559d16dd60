package workflow

import (
	"fmt"

	"gopkg.in/yaml.v3"
)

// wellFormed checks what holds for the whole document: depth, size with aliases followed, tags, merge keys, duplicate
// keys. It works on the tree as it stands, in time linear to the file. It returns false when the tree cannot be walked:
// it is too deep, too large, or contains itself.
func (l *loader) wellFormed(root *yaml.Node) bool {
	w := treeCheck{loader: l, sizes: map[*yaml.Node]extent{}, inside: map[*yaml.Node]bool{}}
	if size := w.node(root, 1); size.values > maxYAMLNodes && !w.endless {
		l.fail(root, "write it out instead", "the file has more than %d values once aliases are followed", maxYAMLNodes)
		w.endless = true
	}
	return !w.endless
}

type treeCheck struct {
	*loader
	sizes   map[*yaml.Node]extent // of anchored nodes, once known
	inside  map[*yaml.Node]bool
	endless bool // the tree cannot be walked
}

// extent is how large a node is with its aliases followed.
type extent struct{ values, height int }

// node measures n, never much more than maxYAMLNodes.
func (w *treeCheck) node(n *yaml.Node, depth int) extent {
	if depth > maxYAMLDepth {
		w.tooDeep(n, depth)
		return extent{1, 1}
	}
	if n.Kind == yaml.AliasNode {
		return w.alias(n, depth)
	}
	w.inside[n] = true
	defer delete(w.inside, n)
	if n.Style&yaml.TaggedStyle != 0 && !coreTag(n) {
		w.fail(n, "remove it", "the tag %s is not supported", clip(n.Tag))
		n.Tag, n.Style = "", n.Style&^yaml.TaggedStyle // the rest of the file is checked as if it were not there
	}
	if n.Kind == yaml.MappingNode {
		w.keys(n)
	}
	size := extent{1, 1}
	for _, c := range n.Content {
		if size.values <= maxYAMLNodes {
			below := w.node(c, depth+1)
			size.values += below.values
			size.height = max(size.height, below.height+1)
		}
	}
	if n.Anchor != "" {
		w.sizes[n] = size
	}
	return size
}

func (w *treeCheck) alias(n *yaml.Node, depth int) extent {
	if n.Alias == nil || w.inside[n.Alias] {
		w.fail(n, "", "the alias *%s contains itself", clip(n.Value))
		w.endless = true
		return extent{1, 1}
	}
	size, ok := w.sizes[n.Alias]
	if !ok { // an anchor is always measured before its aliases
		return extent{1, 1}
	}
	if depth+size.height > maxYAMLDepth+1 {
		w.tooDeep(n, maxYAMLDepth+1)
	}
	return size
}

func (w *treeCheck) tooDeep(n *yaml.Node, depth int) {
	w.endless = true
	if depth == maxYAMLDepth+1 { // once, not for everything below too
		w.fail(n, "", "the file is nested more than %d levels deep", maxYAMLDepth)
	}
}

func (w *treeCheck) keys(n *yaml.Node) {
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch first, double := seen[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			w.fail(key, "", "a key must be text")
		case key.ShortTag() == "!!merge":
			w.fail(key, "write the values out", "merge keys are not supported")
		case double:
			w.fail(key, fmt.Sprintf("the first is on line %d", first), "duplicate key %q", clip(key.Value))
		default:
			seen[key.Value] = key.Line
		}
	}
}

// coreTag reports whether an explicit tag is one of YAML's core types.
func coreTag(n *yaml.Node) bool {
	switch n.ShortTag() {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq":
		return true
	}
	return false
}
