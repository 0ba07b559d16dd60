package tools

import (
	"context"
	"reflect"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
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

// descriptor is all about a tool.
type descriptor struct {
	Definition
	mode  frontmatter.Mode
	build func(def Definition) *tool
}

// bound is the range of a whole number of an input, which its schema has and every call is held to. A most or def of zero
// is none.
type bound struct {
	name             string
	least, most, def int64
}

// describe completes a descriptor. args returns what hosts may check of an input beside the sandbox's id; it may be nil.
func describe[In, Out any](b *binding, mode frontmatter.Mode, def Definition, run func(context.Context, In) (Out, error), args func(*In) Args, bounds ...bound) descriptor {
	return descriptor{def, mode, func(def Definition) *tool { return newTool(b, def, run, args, bounds...) }}
}

// tools makes the tools of a binding, sorted by name.
func (b *binding) tools() []*tool {
	mode := b.cfg.WithDefaults().Mode
	var list []*tool
	for _, d := range b.descriptors() {
		if d.mode == mode {
			list = append(list, d.build(d.Definition))
		}
	}
	return list
}

// offered returns the tools in Genkit's type.
func (b *binding) offered() []ai.Tool {
	var list []ai.Tool
	for _, t := range b.tools() {
		list = append(list, t)
	}
	return list
}

// descriptors returns the table of tools, sorted by name.
func (b *binding) descriptors() []descriptor {
	const compute, code = frontmatter.ModeCompute, frontmatter.ModeCode
	return []descriptor{
		describe(b, code, Definition{Name: ToolClose, Title: "Close a sandbox", Destructive: true, Idempotent: true,
			Description: "Closes the sandbox for you and ends what you left running in it. Never needed: every run cleans up after itself. Its files stay for the rest of the run, and sandbox_open resumes it, unless delete_workspace is true."}, b.closeSandbox, nil),
		describe(b, code, Definition{Name: ToolExec, Title: "Run a command", Destructive: true, Network: true,
			Description: "Runs a command in the sandbox and gives its output. Give cmd (program and arguments, delivered verbatim) or command (one line for /bin/sh -c), not both. A non-zero exit_code is a result like any other. Long output is cut in the middle and kept whole in output_path. A command that takes longer than yield_ms is handed back with status running, also without stream: call sandbox_exec_wait for its end and its output, sandbox_exec_read for what it writes meanwhile, or sandbox_exec_kill."}, b.execCommand, func(in *execInput) Args {
			return Args{TimeoutSeconds: &in.TimeoutSeconds, Argv: in.Cmd, Line: in.Command, Stdin: in.Stdin, StdinOpen: in.Stream}
		}, bound{"timeout_seconds", 1, b.maxSeconds, 0}, bound{"yield_ms", 0, maxYieldMS, 0}),
		describe(b, code, Definition{Name: ToolExecKill, Title: "End a command", Destructive: true, Idempotent: true,
			Description: "Ends a running command with all its children, or sends them a signal. Ending one that has ended is no error."}, b.execKill, nil),
		describe(b, code, Definition{Name: ToolExecRead, Title: "Read a command's output", ReadOnly: true, Idempotent: true,
			Description: "Reads output of a command while it runs or afterwards, in numbered chunks. Reading consumes nothing: pass next_seq as since_seq to read on."}, b.execRead, nil, bound{"since_seq", 0, 0, 0}, bound{"max_chunks", 1, maxChunks, 0}, bound{"wait_ms", 0, maxReadWaitMS, 0}),
		describe(b, code, Definition{Name: ToolExecWait, Title: "Wait for a command", ReadOnly: true, Idempotent: true,
			Description: "Waits until a running command ends and gives its result and output, as sandbox_exec does. After timeout_seconds it gives what there is; the command goes on then."}, b.execWait, nil, bound{"timeout_seconds", 1, maxSeconds, 0}),
		describe(b, code, Definition{Name: ToolExecWrite, Title: "Write to a command", Destructive: true, Network: true,
			Description: "Writes to the standard input of a command that was started with stream: true."}, b.execWrite, nil),
		describe(b, code, Definition{Name: ToolFSDelete, Title: "Delete files", Destructive: true, Idempotent: true,
			Description: "Deletes a file, or with recursive a directory with all it holds. /workspace itself cannot be deleted."}, b.fsDelete, nil),
		describe(b, code, Definition{Name: ToolFSList, Title: "List files", ReadOnly: true, Idempotent: true,
			Description: "Lists a directory, sorted by path. Links are listed, not followed."}, b.fsList, nil, bound{"limit", 1, session.MaxListEntries, session.DefaultListEntries}),
		describe(b, code, Definition{Name: ToolFSRead, Title: "Read a file", ReadOnly: true, Idempotent: true,
			Description: "Reads a file, in whole or in part: by bytes (offset, max_bytes) or by lines (line_offset counts from 1, line_limit). When truncated is true, note says how to read on."}, b.fsRead, func(in *fsReadInput) Args { return Args{Files: map[string]int64{in.Path: 0}} }, bound{"max_bytes", 1, maxTransfer, b.readBytes},
			bound{"offset", 0, 0, 0}, bound{"line_offset", 0, 0, 0}, bound{"line_limit", 0, 0, 0}),
		describe(b, code, Definition{Name: ToolFSWrite, Title: "Write a file", Destructive: true, Idempotent: true,
			Description: "Writes a whole file and makes its parent directories. An existing file is refused unless overwrite is true."}, b.fsWrite, func(in *fsWriteInput) Args { return Args{Files: map[string]int64{in.Path: in.size()}} }),
		describe(b, code, Definition{Name: ToolOpen, Title: "Open a sandbox", Idempotent: true,
			Description: "Opens the sandbox, or resumes it with its files, and tells what can be counted on in it: network, limits, interpreters. Optional: the first tool that needs the sandbox opens it."}, b.openSandbox, func(in *openInput) Args { return Args{SessionKey: &in.SessionKey} }),
		describe(b, compute, Definition{Name: ToolRun, Title: "Run a program", Network: true,
			Description: b.runDescription()}, b.runCode, func(in *runInput) Args {
			sizes := map[string]int64{}
			for name, text := range in.Files {
				sizes[name] = int64(len(text))
			}
			return Args{TimeoutSeconds: &in.TimeoutSeconds, Files: sizes, Code: in.Code, Runtime: in.Runtime}
		}, bound{"timeout_seconds", 1, b.maxSeconds, 0}),
	}
}

func (b *binding) runDescription() string {
	d := "Runs a program in a fresh sandbox that is removed afterwards: nothing is kept between calls. Give the source text as code; print what you need, since only stdout, stderr and the exit code come back. Files for the program go into files."
	if b.cfg.WithDefaults().Network.Allowed() {
		return d
	}
	return d + " There is no network: nothing can be downloaded or installed."
}

// keywords adds the bound to the schema of its property.
func (r bound) keywords(property map[string]any) {
	property["minimum"] = float64(r.least)
	if r.most != 0 {
		property["maximum"] = float64(r.most)
	}
	if r.def != 0 {
		property["default"] = float64(r.def)
	}
}

// check refuses a value that is out of bounds; zero passes, it is the default.
func (r bound) check(value int64) *ToolError {
	switch {
	case value < 0 && r.most == 0:
		return failure(CodeInvalid, "%s is %d, it must not be negative", r.name, value)
	case value != 0 && (value < r.least || r.most != 0 && value > r.most):
		return failure(CodeInvalid, "%s is %d, it must be %d to %d", r.name, value, r.least, r.most)
	}
	return nil
}

// checkBounds checks the numbers of an input.
func checkBounds[In any](in *In, bounds []bound) *ToolError {
	v := reflect.ValueOf(in).Elem()
	for i, a := range arguments(v.Type()) {
		for _, r := range bounds {
			if field := reflect.Indirect(v.Field(i)); a.name == r.name && field.IsValid() {
				if fail := r.check(field.Int()); fail != nil {
					return fail
				}
			}
		}
	}
	return nil
}
