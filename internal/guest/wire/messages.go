package wire

import "fmt"

// Op is the name of a request. One stream carries one request; see docs/contributing/guest-protocol.md.
type Op string

// Requests of protocol version 1, each with the messages: request; response.
const (
	OpHealth  Op = "health-v1"   // Health
	OpRun     Op = "run-v1"      // RunRequest; RunResult
	OpAttach  Op = "attach-v1"   // RunRequest, complete live output; RunResult at the end
	OpRead    Op = "read-v1"     // ReadRequest; ReadResult
	OpWait    Op = "wait-v2"     // WaitRequest; RunResult
	OpStdin   Op = "stdin-v1"    // StdinRequest; Empty
	OpKill    Op = "kill-v1"     // KillRequest; ExecStatus
	OpKillAll Op = "kill-all-v1" // Empty; ExecList
	OpExecs   Op = "execs-v1"    // Empty; ExecList
	OpFileGet Op = "file-get-v1" // FileGetRequest; FileInfo, followed by the bytes
	OpFilePut Op = "file-put-v1" // FilePutRequest, followed by the bytes; FileInfo
	OpList    Op = "file-list-v1"
	OpStat    Op = "file-stat-v1"
	OpRemove  Op = "file-remove-v1"
	OpMkdir   Op = "file-mkdir-v1"
	OpRename  Op = "file-rename-v1"
	OpDigest  Op = "file-digest-v1" // DigestRequest; DigestResult

	OpTerminal Op = "terminal-v1"        // RunRequest with a terminal, live output; RunResult at the end
	OpJoin     Op = "terminal-join-v1"   // TerminalRequest; afterwards like OpTerminal
	OpResize   Op = "terminal-resize-v1" // TerminalRequest; Empty

	OpListen   Op = "listen-v1"   // ListenRequest; ListenResult. The end of the stream ends the ownership
	OpAccept   Op = "accept-v1"   // AcceptRequest; Accepted when a command connects, then data in both directions
	OpDeadline Op = "deadline-v1" // DeadlineRequest; ExecStatus
	OpDial     Op = "dial-v1"     // DialRequest; Dialed, then data in both directions
	OpClaim    Op = "claim-v1"    // ClaimRequest; Empty
)

// ExecState is the state of a command.
type ExecState string

// Command states. All states except ExecRunning are final.
const (
	ExecRunning   ExecState = "running"
	ExecCompleted ExecState = "completed"  // exited, or ended by a signal not sent by Workcell
	ExecTimedOut  ExecState = "timed_out"  // process tree killed at the deadline
	ExecKilled    ExecState = "killed"     // process tree killed on request, or because the host disconnected
	ExecOOMKilled ExecState = "oom_killed" // the kernel killed it because memory ran out
	// ExecQuotaKilled is for all commands killed by the guest agent because of an exceeded limit of the workspace, or of
	// the rest of a writable root.
	ExecQuotaKilled ExecState = "quota_killed"
)

// Spawn describes the process to start. Argv is passed unchanged.
type Spawn struct {
	Argv []string `json:"-"`
	Dir  string   `json:"-"` // absolute, for example "/workspace/src"; empty means the workspace
	// Env is the complete environment, as "NAME=value". The guest agent only adds the marker variable.
	Env           []string `json:"-"`
	TimeoutMillis int64    `json:"timeout_ms,omitempty"` // 0 means no timeout
	GraceMillis   int64    `json:"grace_ms,omitempty"`   // time between SIGTERM and SIGKILL; 0 means the default (2 s)
	OpenFiles     int64    `json:"open_files,omitempty"` // RLIMIT_NOFILE; 0 means unchanged
	FileBytes     int64    `json:"file_bytes,omitempty"` // RLIMIT_FSIZE; 0 means unchanged
}

// RunRequest starts a recorded command and waits for it.
type RunRequest struct {
	Spawn
	ExecID string `json:"exec_id"` // chosen by the host, 128 random bits; reusing an ID returns CodeExists
	// Stdin is sent with the request if it is small and known. StdinOpen keeps standard input open for OpStdin (OpRun)
	// or for the stream (OpAttach). Without both, standard input ends immediately.
	Stdin     []byte `json:"-"`
	StdinOpen bool   `json:"stdin_open,omitempty"`
	// StdinStream announces more standard input on the stream, in data frames within the credit, up to an EOF frame.
	StdinStream bool `json:"stdin_stream,omitempty"`
	// YieldMillis is the maximum time until the response, even if the command is still running. If 0, the response is
	// sent immediately. If negative, the response is sent when the command ends.
	YieldMillis int64 `json:"yield_ms"`
	// KillOnCancel kills the process tree if the stream is closed before the response.
	KillOnCancel bool `json:"kill_on_cancel,omitempty"`
	// HeadBytes and TailBytes limit the output of each stream in the response.
	HeadBytes int `json:"head_bytes,omitempty"`
	TailBytes int `json:"tail_bytes,omitempty"`
	// Spill writes the complete output to a file in the workspace if it does not fit in the response.
	Spill bool `json:"spill,omitempty"`
	// Terminal is only for OpTerminal. If Argv is empty, a shell is started. TimeoutMillis then limits the time without
	// a connected host.
	Terminal *TerminalSize `json:"terminal,omitempty"`
	// Services lists the services to which the command's processes may connect, among the services with identification
	// of commands.
	Services []string `json:"services,omitempty"`
	// Origin identifies the originator of the command, in the host's format. ExecStatus returns it.
	Origin string `json:"origin,omitempty"`
}

// TerminalSize is the size of a terminal in characters. Zeros mean an unknown size.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// TerminalRequest is the message of OpJoin and OpResize. It sets the size of a command's terminal.
type TerminalRequest struct {
	ExecID string       `json:"exec_id"`
	Size   TerminalSize `json:"size"`
}

// Output is the output of one stream in a response: Head, then Omitted missing bytes, then Tail.
type Output struct {
	Head    []byte `json:"-"`
	Tail    []byte `json:"-"`
	Omitted int64  `json:"omitted,omitempty"`
	Total   int64  `json:"total,omitempty"`
	Path    string `json:"path,omitempty"`     // file with the complete output, inside the sandbox
	PathCut bool   `json:"path_cut,omitempty"` // the file is incomplete because the limit or the disk was full
}

// ExecStatus describes a command. ExitCode is only valid if State is not running and Signal is empty.
type ExecStatus struct {
	ExecID         string    `json:"exec_id"`
	State          ExecState `json:"state"`
	ExitCode       int       `json:"exit_code"`
	Signal         string    `json:"signal,omitempty"` // for example "SIGKILL", if a signal ended the process
	PID            int       `json:"pid,omitempty"`
	DurationMicros int64     `json:"duration_us"`
	StdoutBytes    int64     `json:"stdout_bytes"`
	StderrBytes    int64     `json:"stderr_bytes"`
	PeakRSSBytes   int64     `json:"peak_rss_bytes,omitempty"`
	// Leaked is set if processes of the command's process tree, for example background processes, were still running after
	// the command's exit.
	Leaked bool   `json:"leaked,omitempty"`
	Origin string `json:"origin,omitempty"` // RunRequest.Origin
	// Terminal is set if the command runs on a terminal, to which OpJoin connects.
	Terminal bool `json:"terminal,omitempty"`
	// EndedMillis is the time since the command ended. It is absent while the command is running.
	EndedMillis int64 `json:"ended_ms,omitempty"`
	// OOMKills is the number of the sandbox's processes killed by the kernel because memory ran out while this command
	// was running. It is absent if the guest agent cannot read the counter.
	OOMKills int64 `json:"oom_kills,omitempty"`
	// ForksDenied is the number of processes and threads prevented by the sandbox's limit while this command was
	// running. It is absent if the guest agent cannot read the counter.
	ForksDenied int64 `json:"forks_denied,omitempty"`
	// TmpFull and ShmFull are the sizes of /tmp and /dev/shm in bytes, if they were full while this command was
	// running.
	TmpFull int64 `json:"tmp_full,omitempty"`
	ShmFull int64 `json:"shm_full,omitempty"`
	// Direct counts the packets sent by programs to the network, around the egress proxy, while this command ran and
	// failed. It is absent without the service "egress".
	Direct int64 `json:"direct,omitempty"`
	// QuotaExceeded is set if the workspace was full at some time while this command was running. If QuotaOutside is also
	// set, the workspace was not full. Instead, the space for files outside it on a writable root was full.
	QuotaExceeded bool `json:"quota_exceeded,omitempty"`
	QuotaOutside  bool `json:"quota_outside,omitempty"`
}

// RunResult is the response to OpRun, OpAttach, and OpWait.
type RunResult struct {
	ExecStatus
	Stdout Output `json:"stdout"`
	Stderr Output `json:"stderr"`
}

// StreamName is the name of an output stream.
type StreamName string

// Output streams.
const (
	Stdout StreamName = "stdout"
	Stderr StreamName = "stderr"
)

// Chunk is a numbered piece of output. Seq starts at 1 and counts the chunks of both streams of a command.
type Chunk struct {
	Seq    int64      `json:"seq"`
	Stream StreamName `json:"stream"`
	Data   []byte     `json:"-"`
}

// ReadRequest reads recorded output after SinceSeq. The output stays available.
type ReadRequest struct {
	ExecID     string `json:"exec_id"`
	SinceSeq   int64  `json:"since_seq"`
	MaxChunks  int    `json:"max_chunks,omitempty"`
	WaitMillis int64  `json:"wait_ms,omitempty"` // maximum time to wait for a first chunk or the end
}

// ReadResult is the response to ReadRequest. Dropped is the number of chunks after SinceSeq no longer in the ring.
type ReadResult struct {
	Chunks  List[Chunk] `json:"chunks"`
	NextSeq int64       `json:"next_seq"` // SinceSeq for the next read
	Dropped int64       `json:"dropped,omitempty"`
	Done    bool        `json:"done"` // the command has ended and all output was read
	Status  ExecStatus  `json:"status"`
}

// WaitRequest waits for the end of a command, for at most WaitMillis. A negative WaitMillis means no limit.
type WaitRequest struct {
	ExecID     string `json:"exec_id"`
	WaitMillis int64  `json:"wait_ms"`
	// Tree also waits for the end of remaining processes of the command.
	Tree bool `json:"tree,omitempty"`
}

// DeadlineRequest extends the deadline of a running command by AddMillis, 1 to MaxExtension. It does nothing if the
// command has no deadline or has ended.
type DeadlineRequest struct {
	ExecID    string `json:"exec_id"`
	AddMillis int64  `json:"add_ms"`
}

// StdinRequest writes to the standard input of a command started with StdinOpen.
type StdinRequest struct {
	ExecID string `json:"exec_id"`
	Data   []byte `json:"-"`
	EOF    bool   `json:"eof,omitempty"`
}

// KillRequest kills or signals a command's process tree. An empty Signal means SIGTERM, then SIGKILL after the grace
// period. Killing an ended command succeeds.
type KillRequest struct {
	ExecID string `json:"exec_id"`
	Signal string `json:"signal,omitempty"` // for example "SIGINT" or "INT"
}

// ExecList is the response to OpExecs, and to OpKillAll with the killed commands.
type ExecList struct {
	Execs List[ExecStatus] `json:"execs"`
}

// FileType is the type of a directory entry.
type FileType string

// File types.
const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeOther   FileType = "other"
)

// FileInfo describes a directory entry. Path uses slashes. It is relative in the workspace and absolute in the second
// root. It may not be valid UTF-8.
type FileInfo struct {
	Path        string   `json:"-"`
	Type        FileType `json:"type"`
	Size        int64    `json:"size"`
	Mode        uint32   `json:"mode"` // permission bits, setuid, setgid, and sticky bit
	ModTimeUnix int64    `json:"mtime_unix"`
}

// FileGetRequest reads Length bytes of a regular file from Offset on. A negative Length reads the whole rest.
type FileGetRequest struct {
	Path   string `json:"-"`
	Offset int64  `json:"offset,omitempty"`
	Length int64  `json:"length"`
}

// FilePutRequest writes a whole file atomically and creates the parent directories. Size is the exact number of
// following bytes, or negative if unknown.
type FilePutRequest struct {
	Path      string `json:"-"`
	Mode      uint32 `json:"mode,omitempty"` // 0 means the mode of an existing file, or 0644
	Overwrite bool   `json:"overwrite,omitempty"`
	Size      int64  `json:"size"`
	// Was is the required SHA-256 checksum of the existing file. If empty, no condition applies. With a checksum, the
	// file is overwritten, and a link at the end of Path is followed.
	Was []byte `json:"was,omitempty"`
}

// PathRequest is the message of OpStat, OpMkdir, and OpRemove. OpMkdir creates parent directories and accepts an
// existing directory.
type PathRequest struct {
	Path      string `json:"-"`
	Recursive bool   `json:"recursive,omitempty"` // required to remove a directory with OpRemove
	Mode      uint32 `json:"mode,omitempty"`      // for OpMkdir; 0 means 0755
}

// RenameRequest moves a directory entry.
type RenameRequest struct {
	From      string `json:"-"`
	To        string `json:"-"`
	Overwrite bool   `json:"overwrite,omitempty"`
}

// RemoveResult is the response to OpRemove.
type RemoveResult struct {
	Deleted int64 `json:"deleted"` // number of deleted entries
}

// ListRequest lists a directory. Symbolic links are listed but not followed. Entries are sorted by path.
type ListRequest struct {
	Path      string `json:"-"`
	Recursive bool   `json:"recursive,omitempty"`
	Limit     int    `json:"limit,omitempty"` // 0 means 1000
}

// ListResult is the response to ListRequest. Total is at most MaxListTotal.
type ListResult struct {
	Entries   List[FileInfo] `json:"entries"`
	Total     int64          `json:"total"`
	Truncated bool           `json:"truncated"`
}

// DigestRequest requests the checksums of files and the targets of links, for at most MaxDigests paths.
type DigestRequest struct {
	Paths []string `json:"-"`
}

// DigestResult is the response to DigestRequest, in the order of the request's paths.
type DigestResult struct {
	Digests List[Digest] `json:"digests"`
}

// Digest describes a regular file or a link. It is empty for entries of other types and for unreadable entries.
type Digest struct {
	SHA256 []byte `json:"sha256,omitempty"` // checksum of a file's content
	Target []byte `json:"target,omitempty"` // target of a link
}

// Hello describes the guest agent at the start of a connection.
type Hello struct {
	Version  string   `json:"version"` // content version of the guest agent's binary
	PID      int      `json:"pid"`
	UID      int      `json:"uid"`
	Workdir  string   `json:"workdir"`
	Home     string   `json:"home,omitempty"`     // of commands; guests of earlier versions use the workdir
	BootID   string   `json:"boot_id"`            // random at the guest's start: differs after a restart
	Programs []string `json:"programs,omitempty"` // interpreters found on PATH, "python3", "node", "bash", "sh", …
}

// Health is the response to OpHealth.
type Health struct {
	UptimeMillis int64 `json:"uptime_ms"`
	Running      int   `json:"running"`               // running commands, and ended commands with background processes
	MemoryUsed   int64 `json:"memory_used,omitempty"` // memory of the sandbox's cgroup, if visible
	PIDsUsed     int64 `json:"pids_used,omitempty"`
	CPUMillis    int64 `json:"cpu_ms,omitempty"` // CPU time of the sandbox's cgroup since the start, if visible
	// Hosts is the number of connected hosts, including the sender of the request.
	Hosts int `json:"hosts,omitempty"`
}

// ClaimRequest assigns a pooled sandbox to a session.
type ClaimRequest struct {
	OrphanMillis int64 `json:"orphan_timeout_ms,omitempty"` // new orphan timeout of the guest agent; 0 means no timeout
}

// PodReport is the report about a pod, as one line of JSON. `workcell-guest report` prints it, and `workcell-guest
// connect --report` prints it before it starts the bridge.
type PodReport struct {
	Environ []string `json:"environ"` // environment with which the program was started
}

// Empty is a request or response without fields.
type Empty struct{}

// Code is the guest agent's class of an error. The host treats unknown codes as CodeInternal.
type Code string

// Error codes.
const (
	CodeNotFound    Code = "not_found"
	CodeExists      Code = "exists"
	CodeChanged     Code = "changed" // the file does not match FilePutRequest.Was, or was removed
	CodeInvalid     Code = "invalid_argument"
	CodePermission  Code = "permission_denied"
	CodeTooLarge    Code = "too_large"
	CodeTimeout     Code = "timeout"
	CodeUnsupported Code = "unsupported"
	CodeQuota       Code = "quota_exceeded"
	CodeCapacity    Code = "capacity"
	CodeBusy        Code = "busy"          // a process has a lease on the file
	CodeLaunch      Code = "launch_failed" // the program could not be started; see Error.Launch
	CodeInternal    Code = "internal"
)

// Error is the error of a failed request.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Launch is the reason why a program could not be started: "not_found" (exit code 127 in shells), "not_executable"
	// (126), "bad_dir", "too_long", or "no_resources".
	Launch string `json:"launch,omitempty"`
}

// Error returns the code and the message.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Errorf returns an error for the host.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
