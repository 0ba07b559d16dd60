package record

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/workcell-dev/workcell/backend"
)

// Namespaces of keys.
const (
	NamespaceWorkflow = "workflow" // sandboxes of a workflow run
	NamespaceAgent    = "agent"    // sandboxes of an agent without a workflow
	NamespaceMCP      = "mcp"      // sandboxes of an MCP server's client
	NamespaceReplica  = "replica"  // like mcp, for servers with shared sandboxes, which outlive their opener
	NamespaceUser     = "user"     // named sandboxes, which outlive runs and processes
	NamespacePool     = "pool"     // pooled sandboxes without a user
)

// DefaultName is the name of a run's shared sandbox.
const DefaultName = "default"

// MaxPart is the maximum length of a key's part in bytes.
const MaxPart = 128

// Key names a sandbox. A part has 1 to 128 characters from A-Z, a-z, 0-9, '_', '-', and '.', and starts with a letter,
// a digit, or '_'. Therefore the text form, the parts joined by colons, is unambiguous.
type Key struct {
	Namespace string // NamespaceWorkflow, NamespaceAgent, …
	ID        string // run id, or the user's name for the sandbox
	Name      string // name of the sandbox within the run
}

// WorkflowKey returns the key of a workflow run's sandbox.
func WorkflowKey(runID, name string) Key {
	return Key{Namespace: NamespaceWorkflow, ID: runID, Name: name}
}

// AgentKey returns the key of a sandbox of an agent without a workflow.
func AgentKey(runID, name string) Key { return Key{Namespace: NamespaceAgent, ID: runID, Name: name} }

// UserKey returns the key of a named sandbox, which does not belong to a run.
func UserKey(name string) Key {
	return Key{Namespace: NamespaceUser, ID: name, Name: DefaultName}
}

// Scope is the set of keys of one run or one named sandbox: all keys with this Namespace and ID. A tool call can only
// use sandboxes of the call's scope.
type Scope struct {
	Namespace string
	ID        string
}

// Key returns the key of the scope's sandbox with the specified name.
func (s Scope) Key(name string) Key { return Key{Namespace: s.Namespace, ID: s.ID, Name: name} }

// String returns "namespace:id".
func (s Scope) String() string { return s.Namespace + ":" + s.ID }

// userName is the name in the keys of end users' sandboxes.
const userName = "user"

// UserScope returns the scope of an end user's sandboxes, which outlive runs. UserScope replaces bytes not allowed in
// keys by "_" and two hexadecimal digits. The name may be any text with at most MaxPart bytes after this replacement.
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

// userCode matches a byte replaced by UserScope.
var userCode = regexp.MustCompile(`_[0-9a-f]{2}`)

// User returns the end user's name if the key is from UserScope. For other keys, including keys from UserKey, it
// returns "".
func (k Key) User() string {
	if k.Namespace != NamespaceUser || k.Name != userName {
		return ""
	}
	return userCode.ReplaceAllStringFunc(k.ID, func(code string) string {
		c, _ := strconv.ParseUint(code[1:], 16, 8) // two digits
		return string([]byte{byte(c)})
	})
}

// String returns the text form, "workflow:<run>:<name>". ParseKey is the inverse for every valid key.
func (k Key) String() string { return k.Namespace + ":" + k.ID + ":" + k.Name }

// MarshalText returns the text form, to make a key a string in JSON.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText parses the text form.
func (k *Key) UnmarshalText(text []byte) error {
	key, err := ParseKey(string(text))
	*k = key
	return err
}

// Scope returns the scope of the key.
func (k Key) Scope() Scope { return Scope{Namespace: k.Namespace, ID: k.ID} }

// Run returns the id of the key's run. For a named sandbox, it returns "".
func (k Key) Run() string {
	if k.Namespace == NamespaceUser {
		return ""
	}
	return k.ID
}

// Validate returns an error for the first invalid part. The error wraps backend.ErrInvalid.
func (k Key) Validate() error {
	return cmp.Or(ValidatePart("namespace", k.Namespace), ValidatePart("id", k.ID), ValidatePart("name", k.Name))
}

// ParseKey parses the text form of a key.
func ParseKey(text string) (Key, error) {
	if len(text) > 3*MaxPart+2 {
		return Key{}, fmt.Errorf("%w: the sandbox key has %d bytes, the limit is %d",
			backend.ErrInvalid, len(text), 3*MaxPart+2)
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

// ValidatePart validates one part of a key.
func ValidatePart(what, part string) error {
	if part == "" {
		return fmt.Errorf("%w: sandbox key without %s", backend.ErrInvalid, what)
	}
	if len(part) > MaxPart {
		return fmt.Errorf("%w: %s of a sandbox key has %d bytes, the limit is %d",
			backend.ErrInvalid, what, len(part), MaxPart)
	}
	for i, c := range []byte(part) {
		if !keyByte(c) || (i == 0 && (c == '-' || c == '.')) {
			return fmt.Errorf("%w: %s %q of a sandbox key: invalid character %q at %d", backend.ErrInvalid, what, part, c, i)
		}
	}
	return nil
}

// keyByte reports whether c is allowed in a part of a key.
func keyByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return c == '_' || c == '-' || c == '.'
}

// Prefixes of ids, to help users distinguish them.
const (
	SandboxPrefix = "sbx_"
	runPrefix     = "run_"
)

// NewID returns at least 128 random bits as 26 characters of lower-case base32. It contains no time and no counter.
func NewID() string { return strings.ToLower(rand.Text()) }

// NewRunID returns the id of a new run.
func NewRunID() string { return runPrefix + NewID() }

var sandboxID = regexp.MustCompile(`\A` + SandboxPrefix + `[a-z2-7]{26}\z`) // NewID

// ValidSandboxID reports whether id has the format of a sandbox id.
func ValidSandboxID(id string) bool { return sandboxID.MatchString(id) }
