// Package toolspec holds what a tool is to those who offer it, whichever protocol they speak: its definition, how the
// arguments of a model are read, and the failures that it answers with.
package toolspec

import (
	"encoding/json"

	"github.com/invopop/jsonschema"
)

// Names of the tools of package tools.
const (
	ToolRun       = "sandbox_run" // compute mode
	ToolOpen      = "sandbox_open"
	ToolExec      = "sandbox_exec"
	ToolExecRead  = "sandbox_exec_read"
	ToolExecWait  = "sandbox_exec_wait"
	ToolExecWrite = "sandbox_exec_write"
	ToolExecKill  = "sandbox_exec_kill"
	ToolFSWrite   = "sandbox_fs_write"
	ToolFSRead    = "sandbox_fs_read"
	ToolFSEdit    = "sandbox_fs_edit"
	ToolFSList    = "sandbox_fs_list"
	ToolFSDelete  = "sandbox_fs_delete"
	ToolClose     = "sandbox_close"
	ToolSnapshot  = "sandbox_snapshot"
	ToolRollback  = "sandbox_rollback"
)

// Definition is what a host shows of a tool.
type Definition struct {
	Name        string
	Title       string // for people
	Description string // for models
	// What the tool does, for hosts that ask their users before they run one. Network: what it runs may reach the network.
	ReadOnly, Destructive, Idempotent, Network bool

	Input  map[string]any // JSON Schema
	Output map[string]any // JSON Schema
}

// Args are the arguments of a call that a host may hold against rules of its own, by what they are. Those that the tool
// does not have are zero. What the pointers lead to may be changed.
type Args struct {
	SandboxID      *string
	SessionKey     *string          // names the sandbox to open
	TimeoutSeconds *int64           // of the command or program; zero is the default
	Files          map[string]int64 // size of what is written or was read, by path; zero when it is not known yet

	Argv      []string // the command, or
	Line      string   // the command as a line for /bin/sh
	Stdin     *string  // of the command
	StdinOpen bool     // more of it may follow

	Code, Runtime string // the program; an empty Runtime is the agent's own
}

// Result is part of every output.
type Result struct {
	Error *Error `json:"error,omitempty" jsonschema_description:"set if the call failed; then the other fields may be missing"`
}

func (r Result) failure() *Error { return r.Error }

// FailureOf returns the failure that an output carries through its Result; nil when it carries none.
func FailureOf(out any) *Error {
	if f, ok := out.(interface{ failure() *Error }); ok {
		return f.failure()
	}
	return nil
}

// Image is part of an output that may have a picture beside its JSON, for hosts that can show one.
type Image struct {
	MediaType string `json:"media_type,omitempty" jsonschema:"enum=image/png,enum=image/jpeg,enum=image/gif,enum=image/webp" jsonschema_description:"set if the file is an image, which comes with this answer; then contents is missing"`
	Data      []byte `json:"-"`
}

func (i Image) images() []Image {
	if len(i.Data) == 0 {
		return nil
	}
	return []Image{i}
}

// Images is part of an output that may have any number of pictures beside its JSON.
type Images struct {
	Pictures []Image `json:"-"`
}

func (i Images) images() []Image { return i.Pictures }

// ImagesOf returns the pictures of an output.
func ImagesOf(out any) []Image {
	if o, ok := out.(interface{ images() []Image }); ok {
		return o.images()
	}
	return nil
}

// DefinitionOf describes a tool by its types: In and Out are structs with `json`, `jsonschema` and
// `jsonschema_description` tags, and Out embeds Result.
func DefinitionOf[In, Out any](name, description string) Definition {
	in, out := Schemas[In, Out]()
	return Definition{Name: name, Description: description, Input: in, Output: out}
}

// Schemas infers the schemas of a tool. No field of an output is required: a failed call returns nothing but its error.
func Schemas[In, Out any]() (input, output map[string]any) {
	var in In
	var out Out
	output = schemaOf(out)
	delete(output, "required")
	code := output
	for _, key := range []string{"properties", "error", "properties", "code"} {
		code, _ = code[key].(map[string]any)
	}
	if code != nil {
		var codes []any
		for _, c := range Codes() {
			codes = append(codes, string(c))
		}
		code["enum"] = codes
	}
	return schemaOf(in), output
}

// schemaOf infers the schema of a type. Genkit uses the same library.
func schemaOf(v any) (schema map[string]any) {
	r := jsonschema.Reflector{DoNotReference: true, Anonymous: true}
	s := r.Reflect(v)
	s.Version = ""
	data, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(data, &schema)
	}
	if err != nil {
		panic(err) // the types are the tools' own
	}
	return schema
}
