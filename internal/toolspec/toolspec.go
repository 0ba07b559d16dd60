// Package toolspec defines tools for every protocol. A definition has a name, descriptions, and schemas of input and
// output. The package decodes the arguments from models and describes failures.
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

// Definition is the description of a tool for a host.
type Definition struct {
	Name        string
	Title       string // for users
	Description string // for models
	// Properties of the tool, for hosts that ask their users before a call. Network means the tool's programs may use the
	// network.
	ReadOnly, Destructive, Idempotent, Network bool

	Input  map[string]any // JSON Schema
	Output map[string]any // JSON Schema
}

// Args are the arguments of a call in a common form, so a host can check them against its own rules. Arguments the tool
// does not have are zero. The pointers may be used to change the arguments.
type Args struct {
	SandboxID      *string
	SessionKey     *string          // name of the sandbox to open
	TimeoutSeconds *int64           // timeout of the command or program; zero means the default
	Files          map[string]int64 // sizes of written or read files by path; zero if not known yet

	Argv      []string // the command; set either Argv or Line
	Line      string   // a command for /bin/sh
	Stdin     *string  // input of the command
	StdinOpen bool     // more input may follow

	Code, Runtime string // the program; if Runtime is empty, the agent's runtime
}

// Result is part of every output.
type Result struct {
	Error *Error `json:"error,omitempty" jsonschema_description:"set if the call failed; then the other fields may be missing"`
}

func (r Result) failure() *Error { return r.Error }

// FailureOf returns the failure in an output's Result, or nil.
func FailureOf(out any) *Error {
	if f, ok := out.(interface{ failure() *Error }); ok {
		return f.failure()
	}
	return nil
}

// Image is part of an output with an optional picture in addition to the JSON, for hosts with support for pictures.
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

// Images is part of an output with optional pictures in addition to the JSON.
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

// Schemas infers the schemas of a tool. In and Out are structs with `json`, `jsonschema`, and `jsonschema_description`
// tags. Out must embed Result. No field of the output is required, because a failed call returns only the error.
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
		panic(err) // the types are fixed, so this is a bug
	}
	return schema
}
