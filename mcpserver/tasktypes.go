package mcpserver

import "github.com/workcell-dev/workcell/internal/toolspec"

// Task is an agent or a workflow for execute_task.
type Task struct {
	Name        string
	Kind        string // "agent" or "workflow"
	Description string
	Fields      []string // names of the input fields, sorted; empty if the task has no input or a single text
	// Outputs reports whether the task lists output files. Without a session_id, such a task runs in a new session, to
	// keep the files for the client.
	Outputs bool
}

// TaskRequest describes a run of a task.
type TaskRequest struct {
	Name string
	// Text is the input as one text, and Fields is the input as named texts. Either may be empty.
	Text   string
	Fields map[string]string
	// Report receives progress messages. Never nil.
	Report func(message string)
}

// TaskResult is the result of a task. It is part of the output of execute_task.
type TaskResult struct {
	Outcome    string   `json:"outcome" jsonschema_description:"succeeded, or how it failed"`
	Text       string   `json:"text" jsonschema_description:"the answer"`
	OutputJSON string   `json:"output_json,omitempty" jsonschema_description:"the answer as JSON, if it is more than text"`
	Model      string   `json:"model,omitempty"` // empty for workflows
	Steps      int      `json:"steps,omitempty" jsonschema_description:"steps that a workflow ran"`
	ToolCalls  int      `json:"tool_calls,omitempty"` // for agents
	CostUSD    *float64 `json:"cost_usd,omitempty" jsonschema_description:"cost of a coding agent's model requests"`
	// Outputs are the output files. The output of execute_task refers to them as resources.
	Outputs []TaskOutput `json:"-"`
}

// TaskOutput is an output file of a task.
type TaskOutput struct {
	Sandbox string // id of the sandbox with the file
	Path    string // relative to the workspace
	Size    int64
}

// Inputs and outputs of execute_task, get_files, cleanup_session, and session_status.

type executeTaskInput struct {
	Task      string           `json:"task" jsonschema_description:"name of one of the agents and workflows in the description, not the work to do"`
	Input     string           `json:"input,omitempty" jsonschema_description:"the work to do, as text, for a task with one input"`
	Inputs    toolspec.TextMap `json:"inputs,omitempty" jsonschema_description:"inputs by name, an object of name to text, for a task with several inputs"`
	SessionID string           `json:"session_id,omitempty" jsonschema_description:"session that keeps the files, with those of earlier tasks; new creates one and returns its id; if omitted, nothing is kept"`
}

type executeTaskOutput struct {
	toolspec.Result
	Task string `json:"task"`
	TaskResult
	SessionID  string `json:"session_id,omitempty" jsonschema_description:"pass it to get_files, cleanup_session and further tasks"`
	DurationMS int64  `json:"duration_ms"`

	Outputs []taskOutput `json:"outputs,omitempty" jsonschema_description:"output files of the task, each a resource"`
}

type taskOutput struct {
	Path      string `json:"path" jsonschema_description:"relative to /workspace"`
	SizeBytes int64  `json:"size_bytes"`
	URI       string `json:"uri" jsonschema_description:"of the resource"`
}

type getFilesInput struct {
	SessionID string   `json:"session_id,omitempty" jsonschema_description:"a session_id of execute_task or a sandbox_id of sandbox_open; optional if there is one sandbox"`
	Paths     []string `json:"paths,omitempty" jsonschema_description:"files and directories below /workspace; default: everything"`
	Format    string   `json:"format,omitempty" jsonschema:"enum=files,enum=zip,enum=patch" jsonschema_description:"files returns each file as base64, zip one archive of all, patch the changes since the sandbox began, for git apply; default: files"`
}

type getFilesOutput struct {
	toolspec.Result
	Files      []gotFile     `json:"files,omitempty"`
	ZipB64     string        `json:"zip_b64,omitempty" jsonschema_description:"base64 of a zip archive"`
	Patch      string        `json:"patch,omitempty" jsonschema_description:"a patch in Git's format"`
	PatchB64   string        `json:"patch_b64,omitempty" jsonschema_description:"base64 of the patch, if it is not UTF-8"`
	Count      int           `json:"count" jsonschema_description:"number of returned files"`
	TotalBytes int64         `json:"total_bytes" jsonschema_description:"their size"`
	Skipped    []skippedFile `json:"skipped,omitempty" jsonschema_description:"files that are not returned, and why"`
	Truncated  bool          `json:"truncated" jsonschema_description:"more files than one call returns; pass paths"`
}

// gotFile is a file returned by get_files.
type gotFile struct {
	Path        string `json:"path" jsonschema_description:"relative to /workspace"`
	SizeBytes   int64  `json:"size_bytes"`
	ContentsB64 string `json:"contents_b64" jsonschema_description:"base64"`
}

// skippedFile is an entry skipped by get_files.
type skippedFile struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

type cleanupSessionInput struct {
	SessionID string `json:"session_id" jsonschema_description:"a session_id of execute_task or a sandbox_id of sandbox_open"`
}

type cleanupSessionOutput struct {
	toolspec.Result
	OK      bool `json:"ok"`
	Removed int  `json:"removed" jsonschema_description:"removed sandboxes"`
}

type sessionStatusInput struct {
	SessionID string `json:"session_id,omitempty" jsonschema_description:"a session_id of execute_task or a sandbox_id of sandbox_open; default: all your sandboxes"`
}

type sessionStatusOutput struct {
	toolspec.Result
	Sessions []sessionStatus `json:"sessions"`
}

// sessionStatus describes a sandbox. Unknown values are omitted.
type sessionStatus struct {
	SessionID      string `json:"session_id,omitempty" jsonschema_description:"set if it belongs to a session of execute_task"`
	SandboxID      string `json:"sandbox_id"`
	State          string `json:"state" jsonschema:"enum=ready,enum=stopped,enum=lost,enum=closed"`
	Image          string `json:"image"`
	Network        string `json:"network"`
	AgeSeconds     int64  `json:"age_seconds"`
	IdleSeconds    int64  `json:"idle_seconds"`
	IdleLimit      int64  `json:"idle_limit_seconds,omitempty" jsonschema_description:"idle time after which it is closed"`
	Running        int    `json:"running_commands"`
	CPUMillicores  int64  `json:"cpu_limit_millicores,omitempty"`
	CPUTimeMS      int64  `json:"cpu_time_ms,omitempty" jsonschema_description:"CPU time since the sandbox was created"`
	MemoryBytes    int64  `json:"memory_bytes,omitempty"`
	MemoryLimit    int64  `json:"memory_limit_bytes,omitempty"`
	Processes      int64  `json:"processes,omitempty"`
	WorkspaceBytes int64  `json:"workspace_bytes" jsonschema_description:"size of the files below /workspace"`
	WorkspaceMore  bool   `json:"workspace_more,omitempty" jsonschema_description:"more files exist than were counted"`
	WorkspaceLimit int64  `json:"workspace_limit_bytes,omitempty"`
}
