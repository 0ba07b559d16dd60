package mcpserver

import "github.com/workcell-dev/workcell/internal/toolspec"

// Task is an agent or a workflow that execute_task can run.
type Task struct {
	Name        string
	Kind        string // "agent" or "workflow"
	Description string
	Fields      []string // names of its input's fields, sorted; empty when it takes none or a bare text
	// Outputs: it names files that it makes. Without a session_id it is run in a fresh session, so that they can be had.
	Outputs bool
}

// TaskRequest describes a run of a task.
type TaskRequest struct {
	Name string
	// Text is the input as one text, Fields as named ones; either may be empty.
	Text   string
	Fields map[string]string
	// Report receives progress messages. Never nil.
	Report func(message string)
}

// TaskResult is the result of a task.
type TaskResult struct {
	Outcome    string   // "succeeded", "failed", …
	Text       string   // the answer
	OutputJSON string   // the answer as JSON, when it is more than text
	Model      string   // empty for workflows
	Steps      int      // of workflows
	ToolCalls  int      // of agents
	CostUSD    *float64 // of coding agents; nil when it is not known
	Outputs    []TaskOutput
}

// TaskOutput is a file that a task made.
type TaskOutput struct {
	Sandbox string // id of the sandbox that it is in
	Path    string // below the work directory
	Size    int64
}

// The inputs and outputs of execute_task, get_files, cleanup_session and session_status.

type executeTaskInput struct {
	Task      string           `json:"task" jsonschema_description:"name of one of the agents and workflows that the description lists, not what it is to do"`
	Input     string           `json:"input,omitempty" jsonschema_description:"what the task is to do, in words, for a task that takes one text"`
	Inputs    toolspec.TextMap `json:"inputs,omitempty" jsonschema_description:"input by name, an object of name to text, for a task that takes several"`
	SessionID string           `json:"session_id,omitempty" jsonschema_description:"keep the files in a session of this name and work on with those of earlier tasks; new makes a fresh one and gives its id; nothing is kept when left out"`
}

type executeTaskOutput struct {
	toolspec.Result
	Task       string   `json:"task"`
	Outcome    string   `json:"outcome" jsonschema_description:"succeeded, or how it failed"`
	Text       string   `json:"text" jsonschema_description:"the answer"`
	OutputJSON string   `json:"output_json,omitempty" jsonschema_description:"the answer as JSON, when it is more than text"`
	Model      string   `json:"model,omitempty"`
	Steps      int      `json:"steps,omitempty" jsonschema_description:"steps that a workflow ran"`
	ToolCalls  int      `json:"tool_calls,omitempty"`
	CostUSD    *float64 `json:"cost_usd,omitempty" jsonschema_description:"of a coding agent's requests to its model"`
	SessionID  string   `json:"session_id,omitempty" jsonschema_description:"pass it to get_files, cleanup_session and further tasks"`
	DurationMS int64    `json:"duration_ms"`

	Outputs []taskOutput `json:"outputs,omitempty" jsonschema_description:"the files that the task was to make, each a resource"`
}

type taskOutput struct {
	Path      string `json:"path" jsonschema_description:"relative to /workspace"`
	SizeBytes int64  `json:"size_bytes"`
	URI       string `json:"uri" jsonschema_description:"of the resource"`
}

type getFilesInput struct {
	SessionID string   `json:"session_id,omitempty" jsonschema_description:"a session_id of execute_task or a sandbox_id of sandbox_open; may be left out when there is one sandbox"`
	Paths     []string `json:"paths,omitempty" jsonschema_description:"files and directories below /workspace; everything when left out"`
	Format    string   `json:"format,omitempty" jsonschema:"enum=files,enum=zip,enum=patch" jsonschema_description:"files gives each file as base64, zip one archive of all, patch what changed since the sandbox began, for git apply; files when left out"`
}

type getFilesOutput struct {
	toolspec.Result
	Files      []gotFile     `json:"files,omitempty"`
	ZipB64     string        `json:"zip_b64,omitempty" jsonschema_description:"base64 of a zip archive"`
	Patch      string        `json:"patch,omitempty" jsonschema_description:"a patch in Git's format"`
	PatchB64   string        `json:"patch_b64,omitempty" jsonschema_description:"base64 of the patch, when it is not UTF-8"`
	Count      int           `json:"count" jsonschema_description:"files that are given"`
	TotalBytes int64         `json:"total_bytes" jsonschema_description:"their size"`
	Skipped    []skippedFile `json:"skipped,omitempty" jsonschema_description:"what is not given, and why"`
	Truncated  bool          `json:"truncated" jsonschema_description:"there is more than one call gives; name paths"`
}

// gotFile is a file of get_files.
type gotFile struct {
	Path        string `json:"path" jsonschema_description:"relative to /workspace"`
	SizeBytes   int64  `json:"size_bytes"`
	ContentsB64 string `json:"contents_b64" jsonschema_description:"base64"`
}

// skippedFile is an entry that get_files leaves out.
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
	Removed int  `json:"removed" jsonschema_description:"sandboxes that were removed"`
}

type sessionStatusInput struct {
	SessionID string `json:"session_id,omitempty" jsonschema_description:"a session_id of execute_task or a sandbox_id of sandbox_open; all of yours when left out"`
}

type sessionStatusOutput struct {
	toolspec.Result
	Sessions []sessionStatus `json:"sessions"`
}

// sessionStatus describes a sandbox. What is not known is missing.
type sessionStatus struct {
	SessionID      string `json:"session_id,omitempty" jsonschema_description:"when it belongs to a session of execute_task"`
	SandboxID      string `json:"sandbox_id"`
	State          string `json:"state" jsonschema:"enum=ready,enum=stopped,enum=lost,enum=closed"`
	Image          string `json:"image"`
	Network        string `json:"network"`
	AgeSeconds     int64  `json:"age_seconds"`
	IdleSeconds    int64  `json:"idle_seconds"`
	IdleLimit      int64  `json:"idle_limit_seconds,omitempty" jsonschema_description:"idle time after which it is closed"`
	Running        int    `json:"running_commands"`
	CPUMillicores  int64  `json:"cpu_limit_millicores,omitempty"`
	CPUTimeMS      int64  `json:"cpu_time_ms,omitempty" jsonschema_description:"CPU time used since the sandbox was made"`
	MemoryBytes    int64  `json:"memory_bytes,omitempty"`
	MemoryLimit    int64  `json:"memory_limit_bytes,omitempty"`
	Processes      int64  `json:"processes,omitempty"`
	WorkspaceBytes int64  `json:"workspace_bytes" jsonschema_description:"size of the files below /workspace"`
	WorkspaceMore  bool   `json:"workspace_more,omitempty" jsonschema_description:"there are more files than were counted"`
	WorkspaceLimit int64  `json:"workspace_limit_bytes,omitempty"`
}
