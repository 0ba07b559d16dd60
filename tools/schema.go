package tools

import (
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
)

// Inputs and outputs of the tools. Models see their schemas.

// inSandbox is the part of an input selecting the sandbox.
type inSandbox struct {
	SandboxID string `json:"sandbox_id,omitempty" jsonschema_description:"optional if there is one sandbox"`
}

func (in *inSandbox) args() toolspec.Args { return toolspec.Args{SandboxID: &in.SandboxID} }

func (in inSandbox) id() string { return in.SandboxID }

// inFile is the part of an input selecting a file.
type inFile struct {
	inSandbox
	Path string `json:"path" jsonschema_description:"path below /workspace, relative or absolute, or below /tmp"`
}

func (in *inFile) args() toolspec.Args {
	return toolspec.Args{SandboxID: &in.SandboxID, Files: map[string]int64{in.Path: 0}}
}

// done is the output of a tool without a result, and the part of an output with the success.
type done struct {
	toolspec.Result
	OK bool `json:"ok"`
}

type runInput struct {
	Code           string           `json:"code" jsonschema_description:"source text of the program"`
	Runtime        string           `json:"runtime,omitempty" jsonschema:"enum=python,enum=node,enum=bash" jsonschema_description:"language of the code; default: the agent's own"`
	Args           []string         `json:"args,omitempty" jsonschema_description:"arguments of the program"`
	Env            toolspec.TextMap `json:"env,omitempty" jsonschema_description:"environment variables, an object such as {\"LANG\": \"C\"}"`
	Files          toolspec.TextMap `json:"files,omitempty" jsonschema_description:"files to write before the run, an object of path to text such as {\"data/in.csv\": \"a,b\"}; paths are relative to the working directory"`
	TimeoutSeconds int64            `json:"timeout_seconds,omitempty" jsonschema_description:"timeout of the program; default: the agent's own or 120"`
}

func (in *runInput) args() toolspec.Args {
	sizes := map[string]int64{}
	for name, text := range in.Files {
		sizes[name] = int64(len(text))
	}
	return toolspec.Args{TimeoutSeconds: &in.TimeoutSeconds, Files: sizes, Code: in.Code, Runtime: in.Runtime}
}

// runOutput is the output of sandbox_run. If the run was stopped early, it has the output so far and an Error.
type runOutput struct {
	toolspec.Result
	OK         bool   `json:"ok" jsonschema_description:"the exit code is 0"`
	Runtime    string `json:"runtime"`
	ExitCode   *int   `json:"exit_code,omitempty" jsonschema_description:"128 + signal if a signal killed the program"`
	DurationMS int64  `json:"duration_ms"`
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	Truncated  bool   `json:"truncated" jsonschema_description:"part of stdout or stderr is missing"`
	Value      any    `json:"result,omitempty" jsonschema_description:"value that the program passed to workcell's result(value)"`
	hostCounts
	sandbox.Evidence
}

// hostCounts is the part of an output counting the host calls of the program.
type hostCounts struct {
	HostCalls *hosttools.Counts       `json:"host_calls,omitempty" jsonschema_description:"calls of host tools that the program made"`
	Refused   []sandbox.EgressRefusal `json:"network_refused,omitempty" jsonschema_description:"hosts that the program was not allowed to reach"`
}

type openInput struct {
	SessionKey string `json:"session_key,omitempty" jsonschema_description:"name of another sandbox of this run, default for the shared sandbox of its agents; if omitted, the agent's own"`
}

func (in *openInput) args() toolspec.Args { return toolspec.Args{SessionKey: &in.SessionKey} }

type openOutput struct {
	toolspec.Result
	SandboxID string     `json:"sandbox_id"`
	Image     string     `json:"image"`
	Workdir   string     `json:"workdir"`
	Created   bool       `json:"created" jsonschema_description:"false if the sandbox already existed, with its files"`
	User      string     `json:"user"`
	Network   string     `json:"network"`
	Limits    openLimits `json:"limits"`
	Ports     []openPort `json:"ports,omitempty" jsonschema_description:"ports that programs in the sandbox listen on"`
	Note      string     `json:"note" jsonschema_description:"description of the sandbox: network, limits, interpreters"`
}

// openPort is a port in the sandbox the agent's file lists. It does not include the forwarded host port, because models
// do not need it.
type openPort struct {
	Name string `json:"name"`
	Port int64  `json:"port"`
	URL  string `json:"url" jsonschema_description:"inside the sandbox"`
}

// openLimits are the enforced limits of a sandbox. Other limits are omitted.
type openLimits struct {
	CPUMillicores        int64                `json:"cpu_millicores,omitempty" jsonschema_description:"thousandths of a processor"`
	MemoryMB             int64                `json:"memory_mb,omitempty" jsonschema_description:"memory in MiB"`
	PIDs                 int64                `json:"pids,omitempty" jsonschema_description:"processes and threads"`
	IdleTimeout          frontmatter.Duration `json:"idle_timeout,omitempty" jsonschema:"type=string" jsonschema_description:"idle time after which the sandbox is closed, such as 15m"`
	ExecTimeout          frontmatter.Duration `json:"exec_timeout,omitempty" jsonschema:"type=string" jsonschema_description:"default timeout of a command, such as 90s"`
	WorkspaceMB          int64                `json:"workspace_mb,omitempty" jsonschema_description:"size of /workspace in MiB"`
	ShmMB                int64                `json:"shm_mb,omitempty" jsonschema_description:"size of /dev/shm in MiB"`
	WorkspaceEnforcement string               `json:"workspace_enforcement,omitempty" jsonschema:"enum=filesystem,enum=memory,enum=watched" jsonschema_description:"how workspace_mb is enforced: watched means that commands are killed if the files get too large"`
	RootMB               int64                `json:"root_mb,omitempty" jsonschema_description:"limit of files outside the workspace, /tmp, and /dev/shm"`
	RootEnforcement      string               `json:"root_enforcement,omitempty" jsonschema:"enum=memory,enum=watched" jsonschema_description:"how root_mb is enforced, as workspace_enforcement"`
}

type execInput struct {
	inSandbox
	Cmd            []string         `json:"cmd,omitempty" jsonschema_description:"program and arguments, delivered verbatim without a shell; this or command"`
	Command        string           `json:"command,omitempty" jsonschema_description:"one line for /bin/sh -c; this or cmd"`
	Cwd            string           `json:"cwd,omitempty" jsonschema:"default=/workspace" jsonschema_description:"working directory"`
	Env            toolspec.TextMap `json:"env,omitempty" jsonschema_description:"environment variables over the sandbox's own, an object such as {\"LANG\": \"C\"}"`
	Stdin          *string          `json:"stdin,omitempty" jsonschema_description:"text for standard input; empty if omitted"`
	TimeoutSeconds int64            `json:"timeout_seconds,omitempty" jsonschema_description:"timeout, which kills the command and all its children; default: the agent's own or 120"`
	YieldMS        *int64           `json:"yield_ms,omitempty" jsonschema_description:"a command that takes longer is returned with status running, and sandbox_exec_wait waits for it; default: the agent's own or 10000"`
	Stream         bool             `json:"stream,omitempty" jsonschema_description:"return immediately, regardless of yield_ms, and keep standard input open for sandbox_exec_write"`
	Interpreter    string           `json:"interpreter,omitempty" jsonschema:"enum=python,enum=node" jsonschema_description:"run code in an interpreter that keeps its variables between calls, instead of cmd or command"`
	Code           string           `json:"code,omitempty" jsonschema_description:"program for interpreter"`
}

func (in *execInput) args() toolspec.Args {
	return toolspec.Args{
		SandboxID: &in.SandboxID, TimeoutSeconds: &in.TimeoutSeconds, Argv: in.Cmd, Line: in.Command, Stdin: in.Stdin,
		StdinOpen: in.Stream,
		Code:      in.Code, Runtime: in.Interpreter,
	}
}

// execOutput is the output of sandbox_exec. A non-zero exit code is a result, not an error.
type execOutput struct {
	toolspec.Result
	ExecID   string `json:"exec_id"`
	Status   string `json:"status" jsonschema:"enum=completed,enum=running,enum=timed_out,enum=killed,enum=oom_killed,enum=quota_killed"`
	ExitCode *int   `json:"exit_code,omitempty" jsonschema_description:"absent while the command runs; 128 + signal if a signal killed it"`
	Signal   string `json:"signal,omitempty" jsonschema_description:"the signal that killed the command"`
	// QuotaExceeded is separate because a command's output does not always show the disk is full.
	QuotaExceeded bool   `json:"quota_exceeded,omitempty" jsonschema_description:"the workspace, or the space outside it, was full while the command ran; delete files"`
	Stdout        string `json:"stdout"`
	Stderr        string `json:"stderr"`
	Truncated     bool   `json:"truncated" jsonschema_description:"part of stdout or stderr is missing here"`
	StdoutBytes   int64  `json:"stdout_bytes" jsonschema_description:"bytes written in all"`
	StderrBytes   int64  `json:"stderr_bytes" jsonschema_description:"bytes written in all"`
	OutputPath    string `json:"output_path,omitempty" jsonschema_description:"file in the sandbox with the full output"`
	DurationMS    int64  `json:"duration_ms"`
	Value         string `json:"value,omitempty" jsonschema_description:"of code: its last expression, as the language writes it; images come with this answer"`
	toolspec.Images
	hostCounts
	sandbox.Evidence
}

type execReadInput struct {
	inSandbox
	ExecID    string `json:"exec_id" jsonschema_description:"from sandbox_exec"`
	SinceSeq  int64  `json:"since_seq,omitempty" jsonschema_description:"return chunks after this number; 0 starts at the first"`
	MaxChunks int64  `json:"max_chunks,omitempty" jsonschema_description:"maximum number of chunks; default 100"`
	WaitMS    int64  `json:"wait_ms,omitempty" jsonschema_description:"time to wait for a first chunk or the end"`
}

type execReadOutput struct {
	toolspec.Result
	Chunks  []execChunk `json:"chunks"`
	Done    bool        `json:"done" jsonschema_description:"the command exited and everything was read"`
	NextSeq int64       `json:"next_seq" jsonschema_description:"pass as since_seq to continue"`
	Dropped int64       `json:"dropped" jsonschema_description:"chunks after since_seq that are no longer kept"`
}

// execChunk is a numbered part of the output. If it is not valid UTF-8, DataB64 is set instead of Text.
type execChunk struct {
	Seq     int64  `json:"seq"`
	Stream  string `json:"stream" jsonschema:"enum=stdout,enum=stderr"`
	Text    string `json:"text,omitempty"`
	DataB64 string `json:"data_b64,omitempty"`
}

type execWaitInput struct {
	inSandbox
	ExecID         string `json:"exec_id" jsonschema_description:"from sandbox_exec"`
	TimeoutSeconds int64  `json:"timeout_seconds,omitempty" jsonschema_description:"maximum time to wait; default 120. The command keeps running afterwards."`
}

// execWaitOutput is the output of sandbox_exec_wait. It has the same fields as the output of sandbox_exec, with the
// command's current state.
type execWaitOutput struct {
	Done bool `json:"done"`
	execOutput
}

type execWriteInput struct {
	inSandbox
	ExecID  string  `json:"exec_id" jsonschema_description:"from sandbox_exec with stream"`
	Text    *string `json:"text,omitempty" jsonschema_description:"text to write; end lines with a newline"`
	DataB64 *string `json:"data_b64,omitempty" jsonschema_description:"bytes to write, base64; instead of text"`
	EOF     bool    `json:"eof,omitempty" jsonschema_description:"close standard input afterwards"`
}

type execKillInput struct {
	inSandbox
	ExecID string `json:"exec_id" jsonschema_description:"from sandbox_exec"`
	Signal string `json:"signal,omitempty" jsonschema_description:"signal for the command and all its children, such as SIGINT; default: TERM, then KILL"`
}

type execKillOutput struct {
	done
	ExitCode *int   `json:"exit_code,omitempty"`
	Status   string `json:"status" jsonschema:"enum=completed,enum=running,enum=timed_out,enum=killed,enum=oom_killed,enum=quota_killed"`
}

type fsWriteInput struct {
	inFile
	Contents    *string `json:"contents,omitempty" jsonschema_description:"text of the file; this or contents_b64"`
	ContentsB64 *string `json:"contents_b64,omitempty" jsonschema_description:"bytes of the file, base64; this or contents"`
	Mode        string  `json:"mode,omitempty" jsonschema_description:"permissions in octal, such as 0755; default: the replaced file's, else 0644"`
	Overwrite   bool    `json:"overwrite,omitempty" jsonschema_description:"replace the file if it exists"`
}

// args returns the arguments for checks. For contents in base64, the size may be a few bytes too large.
func (in *fsWriteInput) args() toolspec.Args {
	size := 0
	switch {
	case in.ContentsB64 != nil:
		size = len(*in.ContentsB64) / 4 * 3
	case in.Contents != nil:
		size = len(*in.Contents)
	}
	return toolspec.Args{SandboxID: &in.SandboxID, Files: map[string]int64{in.Path: int64(size)}}
}

type fsWriteOutput struct {
	done
	Path      string `json:"path" jsonschema_description:"absolute path of the file"`
	SizeBytes int64  `json:"size_bytes"`
}

type fsEditInput struct {
	inFile
	OldString  string  `json:"old_string" jsonschema_description:"the text to replace, exactly as in the file, including white space; it must occur once, so add surrounding lines if needed"`
	NewString  *string `json:"new_string" jsonschema_description:"the replacement text; empty deletes it"`
	ReplaceAll bool    `json:"replace_all,omitempty" jsonschema_description:"replace every occurrence"`
}

// fsEditOutput is the output of sandbox_fs_edit. If the number of occurrences is wrong, it has an Error, Matches, and
// Lines.
type fsEditOutput struct {
	done
	Path      string  `json:"path,omitempty" jsonschema_description:"absolute path of the file"`
	Matches   int64   `json:"matches" jsonschema_description:"how often old_string occurred"`
	Lines     []int64 `json:"lines,omitempty" jsonschema_description:"line numbers of these, counted from 1; the first 20"`
	SizeBytes int64   `json:"size_bytes" jsonschema_description:"size of the file after the edit"`
}

type fsReadInput struct {
	inFile
	MaxBytes   int64 `json:"max_bytes,omitempty" jsonschema_description:"maximum number of bytes to read"`
	Offset     int64 `json:"offset,omitempty" jsonschema_description:"start at this byte; not together with lines"`
	LineOffset int64 `json:"line_offset,omitempty" jsonschema_description:"start at this line, counted from 1"`
	LineLimit  int64 `json:"line_limit,omitempty" jsonschema_description:"maximum number of lines to read"`
}

type fsReadOutput struct {
	toolspec.Result
	toolspec.Image
	Width          int     `json:"width,omitempty" jsonschema_description:"of an image, in pixels, if known"`
	Height         int     `json:"height,omitempty" jsonschema_description:"of an image, in pixels, if known"`
	Contents       *string `json:"contents,omitempty" jsonschema_description:"set if the data is UTF-8 text"`
	ContentsB64    *string `json:"contents_b64,omitempty" jsonschema_description:"otherwise"`
	Truncated      bool    `json:"truncated" jsonschema_description:"the file continues after this part"`
	SizeBytes      int64   `json:"size_bytes" jsonschema_description:"size of the whole file"`
	NextOffset     *int64  `json:"next_offset,omitempty" jsonschema_description:"pass as offset to continue"`
	NextLineOffset *int64  `json:"next_line_offset,omitempty" jsonschema_description:"pass as line_offset to continue"`
	Note           string  `json:"note,omitempty" jsonschema_description:"how to continue, or about an image"`

	data []byte // decoded Contents or ContentsB64
}

type fsListInput struct {
	inSandbox
	Path      string `json:"path,omitempty" jsonschema:"default=." jsonschema_description:"directory below /workspace or /tmp"`
	Recursive bool   `json:"recursive,omitempty" jsonschema_description:"list the whole tree; links are not followed"`
	Limit     int64  `json:"limit,omitempty" jsonschema_description:"maximum number of entries"`
}

type fsListOutput struct {
	toolspec.Result
	Entries   []fsEntry `json:"entries"`
	Truncated bool      `json:"truncated" jsonschema_description:"there are more entries"`
	Total     int64     `json:"total" jsonschema_description:"number of entries, at least"`
}

// fsEntry is an entry of a directory.
type fsEntry struct {
	Path      string `json:"path" jsonschema_description:"relative to /workspace, absolute below /tmp"`
	PathB64   string `json:"path_b64,omitempty" jsonschema_description:"exact bytes of a path that is not UTF-8; path is then a readable form"`
	Type      string `json:"type" jsonschema:"enum=file,enum=dir,enum=symlink,enum=other"`
	Size      int64  `json:"size"`
	Mode      string `json:"mode" jsonschema_description:"octal, for example 0644"`
	MtimeUnix int64  `json:"mtime_unix"`
}

type fsDeleteInput struct {
	inSandbox
	Path      string `json:"path" jsonschema_description:"path below /workspace or /tmp"`
	Recursive bool   `json:"recursive,omitempty" jsonschema_description:"required to delete a directory and its contents"`
}

type fsDeleteOutput struct {
	done
	Deleted int64 `json:"deleted" jsonschema_description:"number of deleted entries"`
}

type snapshotInput struct {
	inSandbox
	Name string `json:"name" jsonschema_description:"name for sandbox_rollback: letters, digits, _, - and ."`
}

type rollbackInput struct {
	inSandbox
	Name string `json:"name" jsonschema_description:"name of the snapshot"`
}

type snapshotOutput struct {
	done
	Snapshots []string `json:"snapshots" jsonschema_description:"names of the existing snapshots, oldest first"`
	Note      string   `json:"note,omitempty"`
}

type closeInput struct {
	inSandbox
	DeleteWorkspace bool `json:"delete_workspace,omitempty" jsonschema_description:"also delete the sandbox and all its files now; otherwise the files are kept for the rest of the run"`
}

// exit returns the exit code of the command. It returns nil if the command is still running or no command was run.
func (o execOutput) exit() *int { return o.ExitCode }

func (o runOutput) exit() *int { return o.ExitCode }
