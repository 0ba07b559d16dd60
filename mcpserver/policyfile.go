package mcpserver

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
)

// maxPolicyBytes bounds a policy file.
const maxPolicyBytes = 1 << 20

// ParsePolicy reads a policy in YAML over DefaultPolicy. Unknown keys, values of another type, limits that are negative or
// no whole numbers, and malformed patterns are errors that name the line or the key.
func ParsePolicy(r io.Reader) (Policy, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxPolicyBytes+1))
	if err != nil {
		return Policy{}, err
	}
	if len(raw) > maxPolicyBytes {
		return Policy{}, errors.New("the policy is larger than 1 MiB")
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	var doc map[string]any
	if err := dec.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return Policy{}, err
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return Policy{}, errors.New("the policy contains more than one document")
	}
	// The decoder below would make 0, which is no bound, of 0.5 and of what is empty.
	limits, _ := doc["limits"].(map[string]any)
	for name, value := range limits {
		want, ok := "a whole number", false
		switch value.(type) {
		case uint64, int64:
			ok = name != execTimeoutKey
		case string:
			ok = name == execTimeoutKey
		}
		if name == execTimeoutKey {
			want = "a time such as 5m"
		}
		if !ok {
			return Policy{}, fmt.Errorf("limits.%s must be %s, not %v", name, want, cmp.Or[any](value, "empty"))
		}
	}
	p := DefaultPolicy()
	if doc != nil {
		if err := yaml.UnmarshalWithOptions(raw, &p, yaml.Strict()); err != nil {
			return Policy{}, err
		}
	}
	if limits == nil {
		p.Limits = DefaultPolicy().Limits
	}
	return p, p.compile()
}

// execTimeoutKey is the only limit that is a time.
const execTimeoutKey = "exec_timeout"
