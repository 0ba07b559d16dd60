package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// maxBytes is the maximum size of a file.
const maxBytes = 64 << 10

// removed lists the replacements of keys of earlier versions.
var removed = map[string]string{
	keyKubernetes + "claims":               "it was removed; use `pool: {IMAGE: N}`, see docs/operations/warm-pools.md",
	keyKubernetes + "trust_network_policy": "use kubernetes.network_policy: enforced, see docs/operations/kubernetes.md",
}

// read reads the file at path into the settings. The error lists all problems with their positions.
func read(table []*setting, path string) error {
	src, err := yamlnode.ReadFile(path, maxBytes)
	if err != nil {
		return err
	}
	return parse(table, path, src)
}

// reader reads a file into settings.
type reader struct {
	*yamlnode.Decoder
	table []*setting
}

// parse parses the text of a file.
func parse(table []*setting, shown string, src []byte) error {
	format := yamlnode.Format{Single: "keep one of them", MaxBytes: maxBytes, MaxDepth: 8, MaxValues: 5_000}
	d, root := format.Read(shown, src)
	d.Removed = removed
	if root != nil && !yamlnode.IsNull(root) {
		(&reader{d, table}).mapping(root, "")
	}
	return d.Err()
}

// mapping reads the keys below prefix. prefix is empty or ends with a dot, for example "limits.".
func (r *reader) mapping(n *yamlnode.Node, prefix string) {
	known := below(r.table, prefix)
	values, _ := r.Fields(n, cmp.Or(strings.TrimSuffix(prefix, "."), "the file"), known...)
	for _, key := range known {
		value, path := values[key], prefix+key
		at := slices.IndexFunc(r.table, func(s *setting) bool { return s.key == path })
		switch {
		case value != nil && at >= 0:
			r.set(r.table[at], value)
		case value != nil:
			r.mapping(value, path+".")
		}
	}
}

// set reads the value of a setting.
func (r *reader) set(s *setting, n *yamlnode.Node) {
	to := s.to
	var values map[string]string
	list, isPairs := s.to.(*pairs)
	if isPairs {
		to = &values
	}
	r.Zero = s.zero
	if !r.Decode(n, s.key, to) {
		return
	}
	if isPairs {
		*list = nil
		for _, from := range slices.Sorted(maps.Keys(values)) {
			*list = append(*list, from+"="+values[from])
		}
	}
	if s.check != nil {
		if problem, hint := s.check(); problem != "" {
			r.Fail(n, hint, "%s", problem)
			return
		}
	}
	if s.read != nil {
		s.read(r)
	}
	s.node, s.origin = n, r.File
}
