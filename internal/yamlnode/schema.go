package yamlnode

import (
	"fmt"
	"maps"
	"slices"
)

// CheckReferences refuses references in a JSON Schema, because validators follow them to files and URLs, or without
// end.
func CheckReferences(schema any) error {
	switch schema := schema.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(schema)) { // to keep the message of a file stable
			_, isText := schema[key].(string)
			if isText && slices.Contains([]string{"$ref", "$dynamicRef", "$anchor", "$dynamicAnchor", "$id"}, key) {
				return fmt.Errorf("%s is not supported, write the definition out", key)
			}
			if err := CheckReferences(schema[key]); err != nil {
				return err
			}
		}
	case []any:
		for _, v := range schema {
			if err := CheckReferences(v); err != nil {
				return err
			}
		}
	}
	return nil
}
