package tools

import (
	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/frontmatter"
)

// tools makes the tools of a binding, sorted by name.
func (b *binding) tools() []ai.Tool {
	if b.cfg.Mode != frontmatter.ModeCode {
		return []ai.Tool{newTool(b, ToolRun, b.runDescription(), b.runCode)}
	}
	return []ai.Tool{
		newTool(b, ToolClose, "Closes the sandbox for you and ends what you left running in it. Never needed: every run cleans up after itself. Its files stay for the rest of the run, and sandbox_open resumes it, unless delete_workspace is true.", b.closeSandbox),
		newTool(b, ToolExec, "Runs a command in the sandbox and gives its output. Give cmd (program and arguments, delivered verbatim) or command (one line for /bin/sh -c), not both. A non-zero exit_code is a result like any other. Long output is cut in the middle and kept whole in output_path. A command that takes longer than yield_ms is handed back with status running, also without stream: call sandbox_exec_wait for its end and its output, sandbox_exec_read for what it writes meanwhile, or sandbox_exec_kill.", b.execCommand),
		newTool(b, ToolExecKill, "Ends a running command with all its children, or sends them a signal. Ending one that has ended is no error.", b.execKill),
		newTool(b, ToolExecRead, "Reads output of a command while it runs or afterwards, in numbered chunks. Reading consumes nothing: pass next_seq as since_seq to read on.", b.execRead),
		newTool(b, ToolExecWait, "Waits until a running command ends and gives its result and output, as sandbox_exec does. After timeout_seconds it gives what there is; the command goes on then.", b.execWait),
		newTool(b, ToolExecWrite, "Writes to the standard input of a command that was started with stream: true.", b.execWrite),
		newTool(b, ToolFSDelete, "Deletes a file, or with recursive a directory with all it holds. /workspace itself cannot be deleted.", b.fsDelete),
		newTool(b, ToolFSList, "Lists a directory, sorted by path. Links are listed, not followed.", b.fsList),
		newTool(b, ToolFSRead, "Reads a file, in whole or in part: by bytes (offset, max_bytes) or by lines (line_offset counts from 1, line_limit). When truncated is true, note says how to read on.", b.fsRead),
		newTool(b, ToolFSWrite, "Writes a whole file and makes its parent directories. An existing file is refused unless overwrite is true.", b.fsWrite),
		newTool(b, ToolOpen, "Opens the sandbox, or resumes it with its files, and tells what can be counted on in it: network, limits, interpreters. Optional: the first tool that needs the sandbox opens it.", b.openSandbox),
	}
}

func (b *binding) runDescription() string {
	d := "Runs a program in a fresh sandbox that is removed afterwards: nothing is kept between calls. Give the source text as code; print what you need, since only stdout, stderr and the exit code come back. Files for the program go into files."
	if b.cfg.WithDefaults().Network.Allowed() {
		return d
	}
	return d + " There is no network: nothing can be downloaded or installed."
}
