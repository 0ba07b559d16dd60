package hosttools

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Limits of tool definitions, which are untrusted.
const (
	maxTools         = 1000
	maxServerTools   = 200
	maxDefinitions   = 4 << 20 // bytes of all tools in a set
	maxNameBytes     = 64
	maxDescription   = 2 << 10
	maxSchemaBytes   = 64 << 10
	maxSchemaDepth   = 32
	maxSchemaNodes   = 2000
	maxSchemaApplied = 10_000 // number of subschemas with all references followed
)

// cleanSchema returns a bounded copy of a schema. It removes unnecessary keywords, rejects references to other
// documents, and replaces cyclic references with schemas for anything. The work is bounded for any schema.
func cleanSchema(raw map[string]any) (map[string]any, error) {
	c := schemaCleaner{bytes: maxSchemaBytes, nodes: maxSchemaNodes}
	copied, err := c.copy(raw, 1, true)
	if err != nil {
		return nil, err
	}
	root, ok := copied.(map[string]any)
	if !ok {
		return nil, errors.New("the schema is not an object")
	}
	r := refWalk{root: root, on: map[string]bool{}, cost: map[string]int{}}
	if _, err := r.walk(root); err != nil {
		return nil, err
	}
	return root, nil
}

type schemaCleaner struct{ bytes, nodes int }

func (c *schemaCleaner) take(bytes, depth int) error {
	c.nodes--
	c.bytes -= bytes
	switch {
	case depth > maxSchemaDepth:
		return fmt.Errorf("the schema is nested more than %d levels deep", maxSchemaDepth)
	case c.nodes < 0:
		return fmt.Errorf("the schema has more than %d values", maxSchemaNodes)
	case c.bytes < 0:
		return fmt.Errorf("the schema is larger than %d KiB", maxSchemaBytes>>10)
	}
	return nil
}

// copy copies a value of a schema. keywords reports whether the keys of an object are schema keywords, as opposed to
// names chosen by the author.
func (c *schemaCleaner) copy(v any, depth int, keywords bool) (any, error) {
	switch v := v.(type) {
	case map[string]any:
		return c.object(v, depth, keywords)
	case []any:
		if err := c.take(2, depth); err != nil {
			return nil, err
		}
		out := make([]any, 0, min(len(v), maxSchemaNodes))
		for _, item := range v {
			copied, err := c.copy(item, depth+1, keywords)
			if err != nil {
				return nil, err
			}
			out = append(out, copied)
		}
		return out, nil
	case string:
		return v, c.take(len(v)+2, depth)
	case nil, bool, float64, int, int64, json.Number:
		return v, c.take(8, depth)
	case []string:
		items := make([]any, min(len(v), maxSchemaNodes+1)) // one more than the limit, which is refused
		for i := range items {
			items[i] = v[i]
		}
		return c.copy(items, depth, keywords)
	}
	return nil, fmt.Errorf("the schema has a %T", v)
}

func (c *schemaCleaner) object(v map[string]any, depth int, keywords bool) (any, error) {
	if len(v) > maxSchemaNodes { // refused before its keys are sorted
		c.nodes = 0
	}
	if err := c.take(2, depth); err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(v)) {
		if keywords && dropped(key, v[key]) {
			continue
		}
		if err := c.take(len(key)+4, depth); err != nil {
			return nil, err
		}
		copied, err := c.copy(v[key], depth+1, !keywords || !slices.Contains(keysAreNames, key))
		if err != nil {
			return nil, err
		}
		if text, ok := copied.(string); ok && keywords && (key == "description" || key == "title") {
			copied = plain(text, maxDescription)
		}
		out[key] = copied
	}
	return out, nil
}

// keysAreNames contains the keywords whose value has keys chosen by the schema's author.
var keysAreNames = []string{
	"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependentRequired", "dependencies",
	"const", "enum",
}

// dropped reports whether a keyword is irrelevant for validation or refers to another document. An invalid
// x-mcp-header would make the SDK panic.
func dropped(key string, value any) bool {
	switch key {
	case "default", "example", "examples", "$id", "id", "$comment", "$anchor", "$vocabulary", "contentSchema",
		"x-mcp-header":
		return true
	case "$schema":
		text, _ := value.(string)
		return !strings.Contains(text, "draft-07")
	}
	return false
}

// refWalk follows the references of a schema.
type refWalk struct {
	root map[string]any
	on   map[string]bool // references in progress
	cost map[string]int  // number of subschemas by reference
}

// walk returns the number of subschemas in v, including references. It replaces cyclic references.
func (r *refWalk) walk(v any) (total int, err error) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			n, err := r.walk(item)
			if err != nil {
				return 0, err
			}
			total += n
		}
		return total, nil
	case map[string]any:
		for _, key := range []string{"$dynamicRef", "$recursiveRef", "$dynamicAnchor"} {
			if v[key] != nil {
				return 0, fmt.Errorf("%s is not supported", key)
			}
		}
		if total, err = r.follow(v); err != nil {
			return 0, err
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			n, err := r.walk(v[key])
			if err != nil {
				return 0, err
			}
			if total += n; total > maxSchemaApplied {
				return 0, fmt.Errorf("the schema has more than %d subschemas after resolving references", maxSchemaApplied)
			}
		}
		return total + 1, nil
	}
	return 0, nil
}

func (r *refWalk) follow(v map[string]any) (int, error) {
	ref, ok := v["$ref"].(string)
	if !ok { // no reference, or a property with this name
		return 0, nil
	}
	target, ok := r.target(ref)
	if !ok {
		return 0, fmt.Errorf("the reference %q must point to #/$defs or #/definitions of the schema", plain(ref, 80))
	}
	if r.on[ref] {
		clear(v)
		return 1, nil
	}
	if n, known := r.cost[ref]; known {
		return n, nil
	}
	r.on[ref] = true
	n, err := r.walk(target)
	delete(r.on, ref)
	r.cost[ref] = n
	return n, err
}

func (r *refWalk) target(ref string) (any, bool) {
	for _, kind := range []string{"$defs", "definitions"} {
		name, ok := strings.CutPrefix(ref, "#/"+kind+"/")
		if !ok || strings.ContainsAny(name, "/%") {
			continue
		}
		defs, _ := r.root[kind].(map[string]any)
		target, ok := defs[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
		return target, ok
	}
	return nil, false
}

// resolve prepares a clean schema for validation.
func resolve(clean map[string]any) (*jsonschema.Resolved, error) {
	data, err := json.Marshal(clean)
	if err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	return s.Resolve(nil) // fetches nothing, because there is no loader
}

// plain returns an untrusted text without control characters and invisible characters, truncated to most bytes.
func plain(s string, most int) string {
	s = sanitize.Strip(s[:min(len(s), 2*most)])
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// Digest returns the SHA-256 of tool definitions. It does not depend on their order.
func Digest(tools []Tool) (string, error) {
	sorted := slices.Clone(tools)
	slices.SortStableFunc(sorted, func(a, b Tool) int { return strings.Compare(a.FullName(), b.FullName()) })
	h := sha256.New()
	for _, t := range sorted {
		data, err := sanitize.JSON(struct {
			Server string
			Definition
		}{t.Server, t.Definition})
		if err != nil {
			return "", fmt.Errorf("digest of %s: %w", t.FullName(), err)
		}
		h.Write(append(data, '\n')) // a hash never returns an error
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
