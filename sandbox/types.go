package sandbox

import (
	"io"
	"io/fs"
	"time"
)

// ExecState is the state of a command.
type ExecState string

// Exec states. All states except ExecRunning are final.
const (
	ExecRunning   ExecState = "running"
	ExecCompleted ExecState = "completed"  // exited normally or by a signal of the program
	ExecTimedOut  ExecState = "timed_out"  // killed with the process tree at the timeout
	ExecKilled    ExecState = "killed"     // killed with the process tree on request
	ExecOOMKilled ExecState = "oom_killed" // killed by the kernel because memory ran out
	// ExecQuotaKilled is the state of all commands of a sandbox after they were killed because the workspace limit, or
	// the limit for files outside the workspace, was exceeded.
	ExecQuotaKilled ExecState = "quota_killed"
)

// ExecRequest describes a command.
type ExecRequest struct {
	Argv    []string // passed without changes; set either Argv or Command
	Command string   // a line for /bin/sh -c
	Dir     string   // default the workspace; a relative path is relative to it
	// Env overrides the sandbox's and the image's environment.
	Env map[string]string
	// EnvBefore contains entries to prepend to list variables, for example PATH.
	EnvBefore map[string]string
	// Stdin is the whole standard input, at most MaxStdinBytes. If Stdin is nil and StdinOpen is false, the command reads
	// end of file. Do not modify Stdin while the command runs.
	Stdin     []byte
	StdinOpen bool // keep standard input open for Command.Write
	// Timeout is the time after which the process tree is killed, MinExecTimeout to MaxExecTimeout. Default the sandbox's.
	Timeout time.Duration
	// Yield is the maximum time to wait. If the command is still running, Exec returns with status ExecRunning and the
	// command continues. If zero or negative, Exec waits until the command ends.
	Yield time.Duration
	// Background makes Exec return at once.
	Background bool
	// HeadBytes and TailBytes limit the returned output per stream. If both are zero, they are 6 KiB and 24 KiB.
	HeadBytes, TailBytes int
	// Services are the services for the command's processes. See Sandbox.Serve.
	Services []ServiceGrant
	// Tools is Settings.Tools of the command.
	Tools string
}

// Output is the returned output of one stream: Head, a gap of Omitted bytes, and Tail.
type Output struct {
	Head, Tail []byte
	Omitted    int64
	Total      int64  // bytes written by the command
	Path       string // absolute path of a file in the sandbox with the whole output, if some was omitted
	PathCut    bool   // the file is also incomplete
}

// Bytes returns Head and Tail joined. If Omitted is zero, the result is the whole output.
func (o Output) Bytes() []byte {
	b := make([]byte, 0, len(o.Head)+len(o.Tail))
	return append(append(b, o.Head...), o.Tail...)
}

// ExecStatus describes a command.
type ExecStatus struct {
	ExecID   string
	Status   ExecState
	ExitCode int    // valid if Status is not ExecRunning and Signal is empty
	Signal   string // signal at the end of the process, for example "SIGKILL"
	Duration time.Duration
	// StdoutBytes and StderrBytes are the numbers of bytes written so far.
	StdoutBytes, StderrBytes int64
	PeakRSSBytes             int64
	// Leaked reports processes of the command's tree that outlived the command, for example background children.
	Leaked bool
	// QuotaExceeded reports a full workspace, or full space outside the workspace, during the command.
	QuotaExceeded bool
	// Limit contains the limits of the sandbox reached during the command, with the values, for example "memory limit
	// of 256 MiB reached (processes killed: 1)". A command may have handled this itself. Limit never contains the limit
	// of open files, because the kernel does not count how often a process reaches it.
	Limit string
	// Terminal reports a command on a terminal. See Command.Attach.
	Terminal bool
	// Age is the time since the command was started. It is zero if unknown.
	Age time.Duration
	// Origin is the label from WithOrigin, or "".
	Origin string
}

// Done reports whether the command has ended.
func (s ExecStatus) Done() bool { return s.Status != ExecRunning }

// ExecResult is the result of Exec, Stream, and Command.Wait.
type ExecResult struct {
	ExecStatus
	Stdout, Stderr Output // empty for Stream
	// Timeout is the effective timeout. It is zero for Command.Wait.
	Timeout time.Duration
	// Refused are the hosts refused to commands of the sandbox during this command.
	Refused []EgressRefusal
}

// Streams are the streams of a command. If Stdin is nil, the command reads end of file. A nil writer discards output.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Started, unless nil, is called with the command just before it starts. Command.Signal kills the command, and Stream
	// then still returns the result. If the command has not started yet, Signal returns an error wrapping
	// backend.ErrNotFound.
	Started func(*Command)
}

// ReadRequest selects recorded output after SinceSeq. Reading does not consume the output.
type ReadRequest struct {
	SinceSeq  int64
	MaxChunks int           // default chosen by the guest
	Wait      time.Duration // how long to wait for the first chunk or the end; at most one minute
}

// Chunk is a numbered part of the output. Seq starts at 1 and counts both streams.
type Chunk struct {
	Seq    int64
	Stream string // "stdout" or "stderr"
	Data   []byte
}

// ReadResult is the result of Command.Read.
type ReadResult struct {
	Chunks  []Chunk
	NextSeq int64 // SinceSeq of the next read
	Dropped int64 // number of discarded chunks after SinceSeq
	Done    bool  // the command has ended and all output was read
	Status  ExecStatus
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

// FileInfo describes an entry in the workspace or /tmp. The path is relative to the workspace, or absolute for an entry
// in /tmp.
type FileInfo struct {
	Path    string // slash-separated, relative to the workspace (".") or absolute below /tmp; valid UTF-8
	RawPath []byte // exact bytes of the path; only if they are not valid UTF-8
	Type    FileType
	Size    int64
	Mode    fs.FileMode // permission bits, setuid, setgid, and sticky
	ModTime time.Time
}

// WriteFileOptions are options for WriteFile.
type WriteFileOptions struct {
	Mode      fs.FileMode // permission bits; if zero, the mode of the existing file or 0644
	Overwrite bool        // replace an existing file; if false, the error wraps backend.ErrExists
	// Size is the exact number of bytes. If the reader returns fewer or more bytes, WriteFile fails and keeps the old
	// file. If zero or negative, the size is unknown.
	Size int64
}

// ReadFileOptions are options for ReadFile.
type ReadFileOptions struct {
	Offset int64
	// Limit is the maximum number of bytes to read; the file may be longer. If zero, ReadFile reads to the end. If the
	// rest is then longer than Options.MaxFileBytes, the error wraps backend.ErrTooLarge.
	Limit int64
}

// ListFilesOptions are options for ListFiles.
type ListFilesOptions struct {
	Recursive bool
	Limit     int // maximum number of entries, up to MaxListEntries; default DefaultListEntries
}

// FileList is the result of ListFiles. Entries are sorted by path. Symlinks are not followed.
type FileList struct {
	Entries   []FileInfo
	Total     int64 // number of entries, or a lower bound
	Truncated bool
}
