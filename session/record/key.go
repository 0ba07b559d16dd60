package record

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/backend"
)

// Namespaces of keys.
const (
	NamespaceWorkflow = "workflow" // the sandboxes of a workflow run
	NamespaceAgent    = "agent"    // the sandboxes of an agent that runs on its own
	NamespaceMCP      = "mcp"      // the sandboxes of a client of an MCP server
	NamespaceReplica  = "replica"  // as mcp, of servers that share sandboxes: they outlive the process that opened them
	NamespaceUser     = "user"     // named sandboxes that outlive runs and processes
	NamespacePool     = "pool"     // sandboxes that are ready and belong to nobody yet
)

// DefaultName is the name of a run's shared sandbox.
const DefaultName = "default"

// MaxPart is the longest part of a key, in bytes.
const MaxPart = 128

// Key names a sandbox. Parts are 1 to 128 characters of A-Z, a-z, 0-9, '_', '-' and '.', and begin with a letter, a
// digit or '_'. So the text form, the parts joined by colons, is injective.
type Key struct {
	Namespace string // NamespaceWorkflow, NamespaceAgent, …
	ID        string // run id, or the user's name for the sandbox
	Name      string // which of the run's sandboxes
}

// WorkflowKey names a sandbox of a workflow run.
func WorkflowKey(runID, name string) Key {
	return Key{Namespace: NamespaceWorkflow, ID: runID, Name: name}
}

// AgentKey names a sandbox of a lone agent run.
func AgentKey(runID, name string) Key { return Key{Namespace: NamespaceAgent, ID: runID, Name: name} }

// UserKey names a sandbox that belongs to no run.
func UserKey(name string) Key {
	return Key{Namespace: NamespaceUser, ID: name, Name: DefaultName}
}

// Scope is the set of keys of one run, or of one named sandbox: all keys with this Namespace and ID. It decides which
// sandboxes a tool call may name.
type Scope struct {
	Namespace string
	ID        string
}

// Key returns the key of a sandbox in the scope.
func (s Scope) Key(name string) Key { return Key{Namespace: s.Namespace, ID: s.ID, Name: name} }

// String returns "namespace:id".
func (s Scope) String() string { return s.Namespace + ":" + s.ID }

// userName is the name of the sandbox that a person has.
const userName = "user"

// UserScope returns the scope of the sandboxes that belong to a person, whatever runs they use. The name is any text;
// in keys what may not stand there is written as "_" and two hexadecimal digits.
func UserScope(user string) Scope {
	var id strings.Builder
	for i, c := range []byte(user) {
		if c == '_' || !keyByte(c) || i == 0 && (c == '-' || c == '.') {
			fmt.Fprintf(&id, "_%02x", c)
			continue
		}
		id.WriteByte(c)
	}
	return Scope{Namespace: NamespaceUser, ID: id.String()}
}

// User returns the name of the person whose sandbox this is (UserScope); empty for other keys, those of UserKey
// included.
func (k Key) User() string {
	if k.Namespace != NamespaceUser || k.Name != userName {
		return ""
	}
	name := regexp.MustCompile(`_[0-9a-f]{2}`).ReplaceAllStringFunc(k.ID, func(code string) string {
		c, _ := strconv.ParseUint(code[1:], 16, 8) // two digits
		return string([]byte{byte(c)})
	})
	return name
}

// String returns the text form, "workflow:<run>:<name>". ParseKey undoes it for every valid key.
func (k Key) String() string { return k.Namespace + ":" + k.ID + ":" + k.Name }

// MarshalText returns the text form, so that a key is a string in JSON.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the text form.
func (k *Key) UnmarshalText(text []byte) error {
	key, err := ParseKey(string(text))
	if err != nil {
		return err
	}
	*k = key
	return nil
}

// Scope returns the scope that the key lies in.
func (k Key) Scope() Scope { return Scope{Namespace: k.Namespace, ID: k.ID} }

// Run returns the id of the run that owns the key; it is empty for named sandboxes.
func (k Key) Run() string {
	if k.Namespace == NamespaceUser {
		return ""
	}
	return k.ID
}

// Validate reports the first part that breaks the rules; the error wraps backend.ErrInvalid.
func (k Key) Validate() error {
	if err := ValidatePart("namespace", k.Namespace); err != nil {
		return err
	}
	if err := ValidatePart("id", k.ID); err != nil {
		return err
	}
	return ValidatePart("name", k.Name)
}

// ParseKey reads the text form of a key.
func ParseKey(text string) (Key, error) {
	if len(text) > 3*MaxPart+2 {
		return Key{}, fmt.Errorf("%w: the sandbox key has %d bytes, the limit is %d", backend.ErrInvalid, len(text), 3*MaxPart+2)
	}
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return Key{}, fmt.Errorf("%w: sandbox key %q must be namespace:id:name", backend.ErrInvalid, text)
	}
	k := Key{Namespace: parts[0], ID: parts[1], Name: parts[2]}
	if err := k.Validate(); err != nil {
		return Key{}, err
	}
	return k, nil
}

// ValidatePart checks one part of a key.
func ValidatePart(what, part string) error {
	if part == "" {
		return fmt.Errorf("%w: sandbox key without %s", backend.ErrInvalid, what)
	}
	if len(part) > MaxPart {
		return fmt.Errorf("%w: %s of a sandbox key has %d bytes, the limit is %d", backend.ErrInvalid, what, len(part), MaxPart)
	}
	for i, c := range []byte(part) {
		if !keyByte(c) || (i == 0 && (c == '-' || c == '.')) {
			return fmt.Errorf("%w: %s %q of a sandbox key: invalid character %q at %d", backend.ErrInvalid, what, part, c, i)
		}
	}
	return nil
}

// keyByte reports whether c may be in a part of a key.
func keyByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return c == '_' || c == '-' || c == '.'
}

// Prefixes of ids, so that people can distinguish them.
const (
	SandboxPrefix = "sbx_"
	runPrefix     = "run_"
)

// idBytes is the entropy of an id: 128 bits.
const idBytes = 16

// NewID returns 128 random bits as 26 characters of lower-case base32. It holds no time and no counter.
func NewID() string {
	var b [idBytes]byte
	rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// NewRunID returns the id of a new run.
func NewRunID() string { return runPrefix + NewID() }

var sandboxID = regexp.MustCompile(`\A` + SandboxPrefix + `[a-z2-7]{26}\z`) // idBytes in base32

// ValidSandboxID reports whether id has the form of a sandbox's id.
func ValidSandboxID(id string) bool { return sandboxID.MatchString(id) }
