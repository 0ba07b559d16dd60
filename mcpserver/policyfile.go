package mcpserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxPolicyBytes bounds a policy file.
const maxPolicyBytes = 1 << 20

// ParsePolicy reads a policy in YAML over DefaultPolicy. Unknown keys, values of another type, limits that are negative or
// no whole numbers, and malformed patterns are errors that name the line.
func ParsePolicy(r io.Reader) (Policy, error) {
	p := DefaultPolicy()
	raw, err := io.ReadAll(io.LimitReader(r, maxPolicyBytes+1))
	if err != nil {
		return Policy{}, err
	}
	if len(raw) > maxPolicyBytes {
		return Policy{}, errors.New("the policy is larger than 1 MiB")
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(&p); err != nil && !errors.Is(err, io.EOF) { // an empty file changes nothing
		return Policy{}, plainYAMLError(err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return Policy{}, errors.New("the policy holds more than one document")
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return Policy{}, plainYAMLError(err)
	}
	if err := checkWhole(find(&doc, "limits")); err != nil {
		return Policy{}, err
	}
	if err := p.compile(); err != nil {
		at, _, _ := strings.Cut(err.Error(), " ")
		if n := find(&doc, strings.TrimSuffix(at, ":")); n != nil {
			return Policy{}, fmt.Errorf("line %d: %w", n.Line, err)
		}
		return Policy{}, err
	}
	return p, nil
}

// checkWhole refuses limits such as 0.5, which the decoder would cut to 0, and 0 is no bound.
func checkWhole(limits *yaml.Node) error {
	if limits == nil {
		return nil
	}
	for i := 1; i < len(limits.Content); i += 2 {
		if n := limits.Content[i]; n.ShortTag() == "!!float" {
			return fmt.Errorf("line %d: limits.%s is %s, it must be a whole number", n.Line, limits.Content[i-1].Value, clip(n.Value))
		}
	}
	return nil
}

// find returns the node at a place such as limits.file_mb or commands.refuse[1]; nil when there is none.
func find(n *yaml.Node, place string) *yaml.Node {
	for key := range strings.FieldsFuncSeq(place, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		if n = child(resolved(n), key); n == nil {
			return nil
		}
	}
	return resolved(n)
}

// resolved returns what a document holds, and what an alias stands for.
func resolved(n *yaml.Node) *yaml.Node {
	for n != nil {
		switch {
		case n.Kind == yaml.DocumentNode && len(n.Content) == 1:
			n = n.Content[0]
		case n.Kind == yaml.AliasNode:
			n = n.Alias
		default:
			return n
		}
	}
	return nil
}

func child(n *yaml.Node, key string) *yaml.Node {
	switch {
	case n == nil:
	case n.Kind == yaml.SequenceNode:
		if i, err := strconv.Atoi(key); err == nil && i < len(n.Content) {
			return n.Content[i]
		}
	case n.Kind == yaml.MappingNode:
		for i := 1; i < len(n.Content); i += 2 {
			if n.Content[i-1].Value == key {
				return n.Content[i]
			}
		}
	}
	return nil
}

// plainYAMLError returns the decoder's error without the names of Go types.
func plainYAMLError(err error) error {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) {
		return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	unknown := regexp.MustCompile(`^(line \d+): field (\S+) not found in type mcpserver\.(\w+)$`)
	value := regexp.MustCompile("(?s)^(line \\d+): cannot unmarshal !!\\w+ ?(`.*`)? ?into (\\S+)$")
	said := make([]string, len(wrong.Errors))
	for i, text := range wrong.Errors {
		said[i] = text
		if m := unknown.FindStringSubmatch(text); m != nil {
			said[i] = fmt.Sprintf("%s: unknown key %q, it must be %s", m[1], clip(m[2]), keysOf(m[3]))
		}
		if m := value.FindStringSubmatch(text); m != nil {
			said[i] = strings.Join(strings.Fields(fmt.Sprintf("%s: %s is not %s", m[1], m[2], kindOf(m[3]))), " ")
		}
	}
	return errors.New(strings.Join(said, "; "))
}

func keysOf(name string) string {
	switch name {
	case "Policy":
		return "commands, files or limits"
	case "CommandRules":
		return "refuse, allow or allow_dynamic"
	case "CommandRule":
		return "name, pattern or reason"
	case "FileRules":
		return "refuse or allow"
	}
	return "file_mb, workspace_mb, execution_seconds, memory_mb or cpu_millicores"
}

func kindOf(name string) string {
	switch name {
	case "int64":
		return "a whole number"
	case "bool":
		return "true or false"
	case "string":
		return "text"
	case "[]string":
		return "a list of patterns"
	case "[]mcpserver.CommandRule":
		return "a list of rules, each with a pattern"
	}
	return "a mapping of names to values"
}
