package hosttools

import (
	"fmt"
	"slices"
)

// spelling holds the property names of a schema. Arguments with another spelling of these names are refused, because a
// Go handler would accept them but conditions would not see them.
type spelling struct {
	meant map[string]string // names by their form folded like encoding/json
	below map[string]bool   // by name: the value of the property has named properties itself
	maps  bool              // caller-chosen names may have such values too
}

// learn adds the names of a part of a schema, and reports whether it found any. If the keys of the part are names,
// under is the keyword above it.
func (s *spelling) learn(v any, under string) (some bool) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			some = s.learn(item, "") || some
		}
	case map[string]any:
		for key, value := range v {
			inner := ""
			if under == "" && slices.Contains(keysAreNames, key) {
				inner = key
			}
			below := s.learn(value, inner)
			some = some || below || under == "" && key == "$ref"
			if under == "patternProperties" ||
				under == "" && (key == "additionalProperties" || key == "unevaluatedProperties") {
				s.maps = s.maps || below
			}
			if under == "properties" {
				some, s.below[key] = true, s.below[key] || below
				if was := s.meant[fold(key)]; was == "" || key < was {
					s.meant[fold(key)] = key
				}
			}
		}
	}
	return some
}

// misspelt returns a fault for each name with another spelling, at all depths of the arguments.
func (s *spelling) misspelt(args any) []string {
	if len(s.meant) == 0 {
		return nil
	}
	var faults []string
	var look func(v any)
	look = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				look(item)
			}
		case map[string]any:
			for given, value := range v {
				below, known := s.below[given]
				if name := s.meant[fold(given)]; !known && name != "" && len(faults) < maxFaults {
					faults = append(faults, fmt.Sprintf("write %s, not %s", plain(name, 80), plain(given, 80)))
				}
				if below || !known || s.maps {
					look(value)
				}
			}
		}
	}
	look(args)
	slices.Sort(faults)
	return slices.Compact(faults)
}
