package tools

import (
	"fmt"
	"strings"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// tools returns the tools of the binding's mode, sorted by name. Each entry has the tool's definition for hosts and
// models, the handler, and the ranges of its numbers. The args method of a tool's input returns the arguments a host
// can check.
func (b *binding) tools() []*tool {
	seconds := func(most int64) toolspec.Bound {
		return toolspec.Bound{Name: "timeout_seconds", Least: 1, Most: most}
	}
	switch b.cfg.WithDefaults().Mode {
	case frontmatter.ModeCode:
		return append(b.codeTools(seconds), b.snapshotTools()...)
	case frontmatter.ModeScript:
		def := b.runDefinition("in your sandbox, which keeps its files between calls: the working directory is /workspace")
		def.Destructive, def.Description = true, def.Description+b.hostNote()
		return []*tool{newTool(b, b.runScript, def, seconds(b.maxSeconds))}
	}
	def := b.runDefinition("in a fresh sandbox that is removed afterwards: nothing is kept between calls")
	return []*tool{newTool(b, b.runCode, def, seconds(b.maxSeconds))}
}

// runDefinition returns the definition of sandbox_run for programs that run at a place.
func (b *binding) runDefinition(place string) toolspec.Definition {
	return toolspec.Definition{
		Name: toolspec.ToolRun, Title: "Run a program", Network: true,
		Description: "Runs a program " + place + ". Pass the source text as code; print what you need, because only stdout, stderr, and the exit code are returned. Pass input files in files." + b.networkNote(),
	}
}

// snapshotTools returns the tools of an agent with snapshots.
func (b *binding) snapshotTools() []*tool {
	if !b.cfg.Snapshots {
		return nil
	}
	return []*tool{
		newTool(b, withSandbox(b, rollback), toolspec.Definition{
			Name: toolspec.ToolRollback, Title: "Roll back to a snapshot", Destructive: true, Idempotent: true,
			Description: "Kills all commands in the sandbox and restores the files below /workspace from the snapshot. Files elsewhere are not changed. The snapshot is kept, so you can use it again.",
		}),
		newTool(b, withSandbox(b, snapshot), toolspec.Definition{
			Name: toolspec.ToolSnapshot, Title: "Create a snapshot",
			Description: fmt.Sprintf("Saves all files below /workspace under a name of your choice, for sandbox_rollback. Use it before risky changes. The limit is %d snapshots.", backend.MaxSnapshots),
		}),
	}
}

// codeTools returns the tools of code mode.
func (b *binding) codeTools(seconds func(most int64) toolspec.Bound) []*tool {
	return []*tool{
		newTool(b, b.closeSandbox, toolspec.Definition{
			Name: toolspec.ToolClose, Title: "Close a sandbox", Destructive: true, Idempotent: true,
			Description: "Closes the sandbox for you and kills processes that you left running. Optional: every run cleans up at its end. The files are kept for the rest of the run, and sandbox_open resumes it, unless delete_workspace is true.",
		}),
		newTool(b, b.execCommand, toolspec.Definition{
			Name: toolspec.ToolExec, Title: "Run a command", Destructive: true, Network: true,
			Description: "Runs a command in the sandbox and returns its output. " + commandHint + " A non-zero " +
				"exit_code is a normal result. Long output is cut in the middle and saved in full in output_path. If a command " +
				"takes longer than yield_ms, it is returned with status running, even without stream: call sandbox_exec_wait " +
				"for its end and output, sandbox_exec_read for its output so far, or sandbox_exec_kill." + b.hostNote(),
		}, seconds(b.maxSeconds), toolspec.Bound{Name: "yield_ms", Most: maxYieldMS}),
		newTool(b, withSandbox(b, execKill), toolspec.Definition{
			Name: toolspec.ToolExecKill, Title: "Kill a command", Destructive: true, Idempotent: true,
			Description: "Kills a running command with all its children, or sends them a signal. It has no effect if the command has exited.",
		}),
		newTool(b, withSandbox(b, b.execRead), toolspec.Definition{
			Name: toolspec.ToolExecRead, Title: "Read a command's output", ReadOnly: true, Idempotent: true,
			Description: "Reads output of a running or finished command in numbered chunks. Reading consumes nothing: pass next_seq as since_seq to continue.",
		}, toolspec.Bound{Name: "since_seq"}, toolspec.Bound{Name: "max_chunks", Least: 1, Most: maxChunks},
			toolspec.Bound{Name: "wait_ms", Most: maxReadWaitMS}),
		newTool(b, withSandbox(b, b.execWait), toolspec.Definition{
			Name: toolspec.ToolExecWait, Title: "Wait for a command", ReadOnly: true, Idempotent: true,
			Description: "Waits until a running command exits and returns its result and output, as sandbox_exec does. After timeout_seconds it returns the output so far; the command keeps running.",
		}, seconds(maxSeconds)),
		newTool(b, b.execWrite, toolspec.Definition{
			Name: toolspec.ToolExecWrite, Title: "Write to a command", Destructive: true, Network: true,
			Description: "Writes to the standard input of a command that was started with stream: true.",
		}),
		newTool(b, withSandbox(b, fsDelete), toolspec.Definition{
			Name: toolspec.ToolFSDelete, Title: "Delete files", Destructive: true, Idempotent: true,
			Description: "Deletes a file, or with recursive a directory and its contents. /workspace itself cannot be deleted.",
		}),
		newTool(b, b.fsEdit, toolspec.Definition{
			Name: toolspec.ToolFSEdit, Title: "Edit a file", Destructive: true,
			Description: "Replaces text in a file: old_string, which must occur exactly once, or with replace_all every occurrence. The rest of the file, its mode, and its line endings do not change: write LF even if the file has CR LF.",
		}),
		newTool(b, withSandbox(b, fsList), toolspec.Definition{
			Name: toolspec.ToolFSList, Title: "List files", ReadOnly: true, Idempotent: true,
			Description: "Lists a directory, sorted by path. Links are listed, not followed.",
		}, toolspec.Bound{Name: "limit", Least: 1, Most: sandbox.MaxListEntries, Default: sandbox.DefaultListEntries}),
		newTool(b, b.fsRead, toolspec.Definition{
			Name: toolspec.ToolFSRead, Title: "Read a file", ReadOnly: true, Idempotent: true,
			Description: "Reads a file, in whole or in part: by bytes (offset, max_bytes) or by lines (line_offset counts from 1, line_limit). If truncated is true, note describes how to continue. An image (PNG, JPEG, GIF, WebP) is shown to you, unless you request part of its bytes.",
		}, toolspec.Bound{Name: "max_bytes", Least: 1, Most: maxTransfer, Default: b.readBytes},
			toolspec.Bound{Name: "offset"}, toolspec.Bound{Name: "line_offset"}, toolspec.Bound{Name: "line_limit"}),
		newTool(b, b.fsWrite, toolspec.Definition{
			Name: toolspec.ToolFSWrite, Title: "Write a file", Destructive: true, Idempotent: true,
			Description: "Writes a whole file and creates its parent directories. It replaces an existing file only if overwrite is true.",
		}),
		newTool(b, b.openSandbox, toolspec.Definition{
			Name: toolspec.ToolOpen, Title: "Open a sandbox", Idempotent: true,
			Description: "Opens the sandbox, or resumes it with its files, and returns its network access, limits, and interpreters. Optional: the first tool that needs the sandbox opens it.",
		}),
	}
}

// offered returns the tools as ai.Tool values.
func (b *binding) offered() []ai.Tool {
	var list []ai.Tool
	for _, t := range b.tools() {
		list = append(list, t)
	}
	return list
}

func (b *binding) networkNote() string {
	installed := installedNote(b.cfg.Environment())
	reach := wish.Request(b.cfg).Egress
	switch {
	case b.cfg.WithDefaults().Network.Allowed():
		return installed
	case !reach.IsZero():
		return installed + " " + reachNote(reach)
	}
	return installed + " There is no network: nothing can be downloaded or installed."
}

// installedNote returns a note for the model listing the installed packages. It begins with a space. It is empty if no
// packages are installed.
func installedNote(e session.Environment) (note string) {
	for _, registry := range []struct {
		name     string
		packages []string
	}{{"Python", e.Pip}, {"npm", e.Npm}} {
		if len(registry.packages) > 0 {
			note += fmt.Sprintf(" Installed %s packages: %s.", registry.name, strings.Join(registry.packages, ", "))
		}
	}
	return note
}

// reachNote tells a model which hosts and services the sandbox reaches.
func reachNote(reach sandbox.Egress) string {
	note := "There is no network except for these HTTP services, which need no credentials: "
	if len(reach.Allow) > 0 {
		note = "Network access is limited to these hosts, through the HTTP proxy in the environment: " +
			strings.Join(reach.Allow, ", ") + "."
		if len(reach.Services) == 0 {
			return note
		}
		note += " These HTTP services need no credentials: "
	}
	names := make([]string, len(reach.Services))
	for i, use := range reach.Services {
		names[i] = "http://" + use.Name + ".workcell"
		if len(use.Allow) > 0 {
			names[i] += " (" + strings.Join(use.Allow, ", ") + ")"
		}
	}
	return note + strings.Join(names, ", ") + "."
}
