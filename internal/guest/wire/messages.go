package wire

import "fmt"

// Op names a request. One stream carries one request; see docs/guest-protocol.md.
type Op string

// Requests of protocol version 1.
const (
	OpHealth  Op = "health-v1"   // Health
	OpRun     Op = "run-v1"      // RunRequest; RunResult
	OpAttach  Op = "attach-v1"   // RunRequest with live, lossless output; RunResult at the end
	OpRead    Op = "read-v1"     // ReadRequest; ReadResult
	OpWait    Op = "wait-v2"     // WaitRequest; RunResult
	OpStdin   Op = "stdin-v1"    // StdinRequest; Empty
	OpKill    Op = "kill-v1"     // KillRequest; ExecStatus
	OpKillAll Op = "kill-all-v1" // Empty; ExecList
	OpExecs   Op = "execs-v1"    // Empty; ExecList
	OpFileGet Op = "file-get-v1" // FileGetRequest; FileInfo, then the bytes
	OpFilePut Op = "file-put-v1" // FilePutRequest and the bytes; FileInfo
	OpList    Op = "file-list-v1"
	OpStat    Op = "file-stat-v1"
	OpRemove  Op = "file-remove-v1"
	OpMkdir   Op = "file-mkdir-v1"
	OpRename  Op = "file-rename-v1"
	OpDigest  Op = "file-digest-v1" // DigestRequest; DigestResult

	OpTerminal Op = "terminal-v1"        // RunRequest with a terminal, for which output is live; RunResult at the end
	OpJoin     Op = "terminal-join-v1"   // TerminalRequest; as OpTerminal from then on
	OpResize   Op = "terminal-resize-v1" // TerminalRequest; Empty

	OpListen   Op = "listen-v1"   // ListenRequest; ListenResult. The end of the stream ends the ownership
	OpAccept   Op = "accept-v1"   // AcceptRequest; Accepted when a command connects, then data both ways
	OpDeadline Op = "deadline-v1" // DeadlineRequest; ExecStatus
	OpDial     Op = "dial-v1"     // DialRequest; Dialed, then data both ways
	OpClaim    Op = "claim-v1"    // ClaimRequest; Empty
)

// ExecState is where an exec is in its life.
type ExecState string

// Exec states; all but ExecRunning are final.
const (
	ExecRunning   ExecState = "running"
	ExecCompleted ExecState = "completed"  // ended by itself, by a signal of its own too
	ExecTimedOut  ExecState = "timed_out"  // its tree was ended at its deadline
	ExecKilled    ExecState = "killed"     // its tree was ended on request, or because the host went away
	ExecOOMKilled ExecState = "oom_killed" // the kernel ended it for lack of memory
	// ExecQuotaKilled: the guest ended it, with all other commands, because the limit of the workspace, or that of the
	// rest of a root that can be written to, was passed.
	ExecQuotaKilled ExecState = "quota_killed"
)

// Spawn is what to start. Argv is delivered verbatim.
type Spawn struct {
	Argv []string `json:"-"`
	Dir  string   `json:"-"` // absolute; empty is the work directory
	// Env is the whole environment, "NAME=value". The guest adds only its own marker.
	Env           []string `json:"-"`
	TimeoutMillis int64    `json:"timeout_ms,omitempty"` // 0 means none
	GraceMillis   int64    `json:"grace_ms,omitempty"`   // TERM to KILL; 0 means the guest's default (2 s)
	OpenFiles     int64    `json:"open_files,omitempty"` // RLIMIT_NOFILE; 0 leaves it
	FileBytes     int64    `json:"file_bytes,omitempty"` // RLIMIT_FSIZE; 0 leaves it
}

// RunRequest starts a recorded exec and waits for it.
type RunRequest struct {
	Spawn
	ExecID string `json:"exec_id"` // chosen by the host, 128 bits random; a second use is ErrExists
	// Stdin is sent with the request when it is small and known; StdinOpen keeps it open for OpStdin (run) or for
	// the stream (attach). Neither means end of file at once.
	Stdin     []byte `json:"-"`
	StdinOpen bool   `json:"stdin_open,omitempty"`
	// StdinStream: more standard input follows on the stream, in data frames within the credit, up to an EOF frame.
	StdinStream bool `json:"stdin_stream,omitempty"`
	// YieldMillis: answer after this long though the exec still runs. 0 answers at once, negative waits for the end.
	YieldMillis int64 `json:"yield_ms"`
	// KillOnCancel ends the tree when the stream is closed before the answer.
	KillOnCancel bool `json:"kill_on_cancel,omitempty"`
	// HeadBytes and TailBytes bound each stream's text in the answer.
	HeadBytes int `json:"head_bytes,omitempty"`
	TailBytes int `json:"tail_bytes,omitempty"`
	// Spill keeps the whole output in a file below the work directory once it does not fit the answer.
	Spill bool `json:"spill,omitempty"`
	// Terminal is for OpTerminal alone. Without Argv a shell is run, and TimeoutMillis is how long the command runs
	// while no host is at its terminal.
	Terminal *TerminalSize `json:"terminal,omitempty"`
	// Services names what the exec's processes may connect to, of the services that are told apart by exec.
	Services []string `json:"services,omitempty"`
	// Origin identifies what started the exec, in the host's words. ExecStatus returns it.
	Origin string `json:"origin,omitempty"`
}

// TerminalSize is the size of a terminal in characters. Zeros are a size that is not known.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// TerminalRequest is for OpJoin and OpResize: the terminal of an exec gets the size.
type TerminalRequest struct {
	ExecID string       `json:"exec_id"`
	Size   TerminalSize `json:"size"`
}

// Output is one stream's part of an answer: Head, then Omitted bytes that are not here, then Tail.
type Output struct {
	Head    []byte `json:"-"`
	Tail    []byte `json:"-"`
	Omitted int64  `json:"omitted,omitempty"`
	Total   int64  `json:"total,omitempty"`
	Path    string `json:"path,omitempty"`     // file with the whole output, inside the sandbox
	PathCut bool   `json:"path_cut,omitempty"` // that file is cut too (its limit or the disk was reached)
}

// ExecStatus describes an exec. ExitCode counts only when State is not running and Signal is empty.
type ExecStatus struct {
	ExecID         string    `json:"exec_id"`
	State          ExecState `json:"state"`
	ExitCode       int       `json:"exit_code"`
	Signal         string    `json:"signal,omitempty"` // "SIGKILL", … when a signal ended the process
	PID            int       `json:"pid,omitempty"`
	DurationMicros int64     `json:"duration_us"`
	StdoutBytes    int64     `json:"stdout_bytes"`
	StderrBytes    int64     `json:"stderr_bytes"`
	PeakRSSBytes   int64     `json:"peak_rss_bytes,omitempty"`
	// Leaked: processes of the exec's tree outlived it, as background children do.
	Leaked bool   `json:"leaked,omitempty"`
	Origin string `json:"origin,omitempty"` // RunRequest.Origin
	// Terminal: it runs on a terminal, which OpJoin joins.
	Terminal bool `json:"terminal,omitempty"`
	// EndedMillis is how long ago it ended; absent while it runs.
	EndedMillis int64 `json:"ended_ms,omitempty"`
	// OOMKills counts the processes of the sandbox that the kernel ended for lack of memory while this one ran; it is
	// absent where the guest cannot see the counter.
	OOMKills int64 `json:"oom_kills,omitempty"`
	// ForksDenied counts the processes and threads that the sandbox's limit prevented while this command ran. It is absent
	// if the guest cannot see the counter.
	ForksDenied int64 `json:"forks_denied,omitempty"`
	// TmpFull and ShmFull are the sizes of /tmp and /dev/shm in bytes, if the guest found them full while this one ran.
	TmpFull int64 `json:"tmp_full,omitempty"`
	ShmFull int64 `json:"shm_full,omitempty"`
	// Direct counts the packets that programs tried to send to the network, around the egress proxy, while this command
	// ran and failed. It is absent without the service "egress".
	Direct int64 `json:"direct,omitempty"`
	// QuotaExceeded: the workspace was full at some time while the command ran. QuotaOutside: not the workspace was, but
	// what a root that can be written to may hold outside of it.
	QuotaExceeded bool `json:"quota_exceeded,omitempty"`
	QuotaOutside  bool `json:"quota_outside,omitempty"`
}

// RunResult answers OpRun, OpAttach and OpWait.
type RunResult struct {
	ExecStatus
	Stdout Output `json:"stdout"`
	Stderr Output `json:"stderr"`
}

// StreamName names an output stream.
type StreamName string

// Streams.
const (
	Stdout StreamName = "stdout"
	Stderr StreamName = "stderr"
)

// Chunk is a numbered piece of output. Seq counts from 1 over both streams of an exec.
type Chunk struct {
	Seq    int64      `json:"seq"`
	Stream StreamName `json:"stream"`
	Data   []byte     `json:"-"`
}

// ReadRequest reads recorded output after SinceSeq. It consumes nothing.
type ReadRequest struct {
	ExecID     string `json:"exec_id"`
	SinceSeq   int64  `json:"since_seq"`
	MaxChunks  int    `json:"max_chunks,omitempty"`
	WaitMillis int64  `json:"wait_ms,omitempty"` // wait this long for a first chunk or the end
}

// ReadResult answers ReadRequest. Dropped counts the chunks after SinceSeq that fell out of the ring.
type ReadResult struct {
	Chunks  List[Chunk] `json:"chunks"`
	NextSeq int64       `json:"next_seq"` // pass as SinceSeq to read on
	Dropped int64       `json:"dropped,omitempty"`
	Done    bool        `json:"done"` // ended, and everything was read
	Status  ExecStatus  `json:"status"`
}

// WaitRequest waits for the end of an exec, at most WaitMillis (negative: no limit).
type WaitRequest struct {
	ExecID     string `json:"exec_id"`
	WaitMillis int64  `json:"wait_ms"`
	// Tree waits for the end of what the exec left running, too.
	Tree bool `json:"tree,omitempty"`
}

// DeadlineRequest gives a running exec more time: AddMillis, 1 to MaxExtension. An exec without a deadline, or that has
// ended, stays as it is.
type DeadlineRequest struct {
	ExecID    string `json:"exec_id"`
	AddMillis int64  `json:"add_ms"`
}

// StdinRequest writes to the standard input of an exec that was started with StdinOpen.
type StdinRequest struct {
	ExecID string `json:"exec_id"`
	Data   []byte `json:"-"`
	EOF    bool   `json:"eof,omitempty"`
}

// KillRequest ends or signals an exec's whole tree. An empty Signal means TERM, grace, KILL. Killing an ended exec is
// no error.
type KillRequest struct {
	ExecID string `json:"exec_id"`
	Signal string `json:"signal,omitempty"` // "SIGINT" or "INT"
}

// ExecList answers OpExecs, and OpKillAll with the execs that it ended.
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

// FileInfo describes an entry. Path is slash-separated, and relative in the work directory, absolute in the other root
// of the file requests. It may be other than UTF-8.
type FileInfo struct {
	Path        string   `json:"-"`
	Type        FileType `json:"type"`
	Size        int64    `json:"size"`
	Mode        uint32   `json:"mode"` // permission bits with setuid, setgid and sticky
	ModTimeUnix int64    `json:"mtime_unix"`
}

// FileGetRequest reads Length bytes (negative: all) from Offset of a regular file.
type FileGetRequest struct {
	Path   string `json:"-"`
	Offset int64  `json:"offset,omitempty"`
	Length int64  `json:"length"`
}

// FilePutRequest writes a whole file, atomically. Parents are made. Size is the exact number of bytes that follow,
// negative when unknown.
type FilePutRequest struct {
	Path      string `json:"-"`
	Mode      uint32 `json:"mode,omitempty"` // 0 means that of the file that is there, else 0644
	Overwrite bool   `json:"overwrite,omitempty"`
	Size      int64  `json:"size"`
	// Was is the SHA-256 sum that the file must still have; empty for no condition. With a sum the file is overwritten,
	// and a link at the end of Path is followed.
	Was []byte `json:"was,omitempty"`
}

// PathRequest is for OpStat, OpMkdir (parents are made, an existing directory is no error) and OpRemove.
type PathRequest struct {
	Path      string `json:"-"`
	Recursive bool   `json:"recursive,omitempty"` // OpRemove of a directory needs it
	Mode      uint32 `json:"mode,omitempty"`      // OpMkdir; 0 means 0755
}

// RenameRequest moves an entry.
type RenameRequest struct {
	From      string `json:"-"`
	To        string `json:"-"`
	Overwrite bool   `json:"overwrite,omitempty"`
}

// RemoveResult answers OpRemove.
type RemoveResult struct {
	Deleted int64 `json:"deleted"` // entries deleted
}

// ListRequest lists a directory; symlinks are listed, never followed. Entries come sorted by path.
type ListRequest struct {
	Path      string `json:"-"`
	Recursive bool   `json:"recursive,omitempty"`
	Limit     int    `json:"limit,omitempty"` // 0 means 1000
}

// ListResult answers ListRequest. Total may stop counting at a documented bound.
type ListResult struct {
	Entries   List[FileInfo] `json:"entries"`
	Total     int64          `json:"total"`
	Truncated bool           `json:"truncated"`
}

// DigestRequest asks what files hold and where links lead, at most MaxDigests of them.
type DigestRequest struct {
	Paths []string `json:"-"`
}

// DigestResult answers DigestRequest, in the order of its paths.
type DigestResult struct {
	Digests List[Digest] `json:"digests"`
}

// Digest is empty for what is neither a regular file nor a link, and for what cannot be read.
type Digest struct {
	SHA256 []byte `json:"sha256,omitempty"` // of a file's content
	Target []byte `json:"target,omitempty"` // of a link
}

// Hello describes the guest when a connection begins.
type Hello struct {
	Version  string   `json:"version"` // content version of the guest binary
	PID      int      `json:"pid"`
	UID      int      `json:"uid"`
	Workdir  string   `json:"workdir"`
	Home     string   `json:"home,omitempty"`     // of commands; guests of earlier versions use the workdir
	BootID   string   `json:"boot_id"`            // random at the guest's start: differs after a restart
	Programs []string `json:"programs,omitempty"` // interpreters found on PATH, "python3", "node", "bash", "sh", …
}

// Health answers OpHealth.
type Health struct {
	UptimeMillis int64 `json:"uptime_ms"`
	Running      int   `json:"running"`               // execs that run, or ended and have background processes
	MemoryUsed   int64 `json:"memory_used,omitempty"` // of the sandbox's cgroup, when visible
	MemoryLimit  int64 `json:"memory_limit,omitempty"`
	PIDsUsed     int64 `json:"pids_used,omitempty"`
	CPUMillis    int64 `json:"cpu_ms,omitempty"` // used by the sandbox's cgroup since it was started, when visible
	// Hosts is how many hosts are connected, the one that asks included.
	Hosts int `json:"hosts,omitempty"`
}

// ClaimRequest hands a pooled sandbox to a session.
type ClaimRequest struct {
	OrphanMillis int64 `json:"orphan_timeout_ms,omitempty"` // new orphan timeout of the guest; 0 means none
}

// PodReport is what `workcell-guest report` prints of its pod as a line of JSON, and `workcell-guest connect --report`
// before it bridges.
type PodReport struct {
	Environ []string `json:"environ"` // that the program was started with
}

// Empty is a request or answer without fields.
type Empty struct{}

// Code is the guest's word for a class of failure. Unknown codes are CodeInternal to the host.
type Code string

// Codes.
const (
	CodeNotFound    Code = "not_found"
	CodeExists      Code = "exists"
	CodeChanged     Code = "changed" // the file no longer has the sum FilePutRequest.Was, or is gone
	CodeInvalid     Code = "invalid_argument"
	CodePermission  Code = "permission_denied"
	CodeTooLarge    Code = "too_large"
	CodeTimeout     Code = "timeout"
	CodeUnsupported Code = "unsupported"
	CodeQuota       Code = "quota_exceeded"
	CodeCapacity    Code = "capacity"
	CodeBusy        Code = "busy"          // a process has a lease on the file
	CodeLaunch      Code = "launch_failed" // the program could not be started; see LaunchFailure
	CodeInternal    Code = "internal"
)

// Error is a failed request.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Launch is why a program could not be started: "not_found" (shell convention 127), "not_executable" (126),
	// "bad_dir", "too_long", "no_resources".
	Launch string `json:"launch,omitempty"`
}

// Error returns the message.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Errorf returns an error for the host.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
