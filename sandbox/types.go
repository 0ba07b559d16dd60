package sandbox

import (
	"io"
	"io/fs"
	"time"
)

// ExecState is where a command is in its life.
type ExecState string

// Exec states; all but ExecRunning are final.
const (
	ExecRunning   ExecState = "running"
	ExecCompleted ExecState = "completed"  // ended by itself, a signal of its own included
	ExecTimedOut  ExecState = "timed_out"  // its whole tree was ended at its timeout
	ExecKilled    ExecState = "killed"     // its whole tree was ended on request
	ExecOOMKilled ExecState = "oom_killed" // ended by the kernel for lack of memory
	// ExecQuotaKilled: ended, with all other commands of the sandbox, because its workspace passed its limit, or what was
	// written outside of it did.
	ExecQuotaKilled ExecState = "quota_killed"
)

// ExecRequest is what to run. The zero Yield waits for the end.
type ExecRequest struct {
	Argv    []string // delivered verbatim; or
	Command string   // one line for /bin/sh -c
	Dir     string   // empty is the work directory; a relative one lies below it
	// Env goes over the sandbox's and the image's environment.
	Env map[string]string
	// EnvBefore are entries that go before those which a variable has that is a list, such as PATH.
	EnvBefore map[string]string
	// Stdin is the whole standard input, at most MaxStdinBytes. Without it and StdinOpen the command reads end of file.
	// It must not be changed while the command runs.
	Stdin     []byte
	StdinOpen bool // keep standard input open for Command.Write
	// Timeout ends the command's whole tree; MinExecTimeout to MaxExecTimeout. Zero is the sandbox's.
	Timeout time.Duration
	// Yield hands a command back as ExecRunning when it still runs after this long; it goes on in the background. Zero
	// and negative values wait for the end.
	Yield time.Duration
	// Background hands the command back at once.
	Background bool
	// HeadBytes and TailBytes bound what is returned of each stream; both zero means 6 KiB and 24 KiB.
	HeadBytes, TailBytes int
	// Services are what the command's processes may connect to, see Sandbox.Serve.
	Services []ServiceGrant
	// Tools is Settings.Tools of the command.
	Tools string
}

// Output is what is returned of one stream: Head, then Omitted bytes that are missing here, then Tail.
type Output struct {
	Head, Tail []byte
	Omitted    int64
	Total      int64  // bytes that the command wrote
	Path       string // absolute path of a file with the whole output inside the sandbox, when some was omitted
	PathCut    bool   // that file is cut short too
}

// Bytes returns head and tail joined; it is the whole output when Omitted is zero.
func (o Output) Bytes() []byte {
	b := make([]byte, 0, len(o.Head)+len(o.Tail))
	return append(append(b, o.Head...), o.Tail...)
}

// ExecStatus describes a command.
type ExecStatus struct {
	ExecID   string
	Status   ExecState
	ExitCode int    // counts when Status is not ExecRunning and Signal is empty
	Signal   string // "SIGKILL", … when a signal ended the process
	Duration time.Duration
	// StdoutBytes and StderrBytes count what the command wrote so far.
	StdoutBytes, StderrBytes int64
	PeakRSSBytes             int64
	// Leaked: processes of the command's tree outlived it, as background children do.
	Leaked bool
	// QuotaExceeded: the workspace, or the space outside it, was full at some time while the command ran.
	QuotaExceeded bool
	// Limit names the limits of the sandbox that were reached while the command ran, and their values, for example
	// "memory limit of 256 MiB reached (processes killed: 1)". A command may have handled this itself. The limit of open
	// files is not named, because the kernel does not count how often a process reaches it.
	Limit string
	// Terminal: it runs on a terminal, see Command.Attach.
	Terminal bool
	// Age is how long ago the command was started; zero when the sandbox does not know.
	Age time.Duration
	// Origin is the label of WithOrigin; empty without one.
	Origin string
}

// Done reports whether the command ended.
func (s ExecStatus) Done() bool { return s.Status != ExecRunning }

// ExecResult answers Exec, Stream and Command.Wait.
type ExecResult struct {
	ExecStatus
	Stdout, Stderr Output // empty in the answer of Stream
	// Timeout is the timeout that was applied; zero in the answer of Command.Wait.
	Timeout time.Duration
	// Refused are the hosts that commands of the sandbox tried to reach while this one ran, and may not.
	Refused []EgressRefusal
}

// Streams are the ends of a streamed command. Nil Stdin is end of file at once, a nil writer discards.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Started, unless nil, gets the command just before it is started. Command.Signal ends the command so that Stream
	// still returns how; when it is not started yet that is backend.ErrNotFound.
	Started func(*Command)
}

// ReadRequest selects recorded output after SinceSeq. Reading consumes nothing.
type ReadRequest struct {
	SinceSeq  int64
	MaxChunks int           // zero is the guest's default
	Wait      time.Duration // wait this long for a first chunk or the end; at most one minute
}

// Chunk is a numbered piece of output. Seq counts from 1 over both streams.
type Chunk struct {
	Seq    int64
	Stream string // "stdout" or "stderr"
	Data   []byte
}

// ReadResult answers Command.Read.
type ReadResult struct {
	Chunks  []Chunk
	NextSeq int64 // pass as SinceSeq to read on
	Dropped int64 // chunks after SinceSeq that are no longer kept
	Done    bool  // ended, and everything was read
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

// FileInfo describes an entry below the work directory, by its path relative to that, or below /tmp, by its absolute
// path.
type FileInfo struct {
	Path    string // slash-separated, relative to the work directory, "." for itself; readable form
	RawPath []byte // the exact bytes, only when they are not UTF-8
	Type    FileType
	Size    int64
	Mode    fs.FileMode // permission bits with setuid, setgid and sticky
	ModTime time.Time
}

// WriteFileOptions refine WriteFile.
type WriteFileOptions struct {
	Mode      fs.FileMode // permission bits; zero is those of the file that is there, else 0644
	Overwrite bool        // replace an existing file; without it that is backend.ErrExists
	// Size is the exact number of bytes when it is known: a reader with fewer or more is an error and leaves the
	// old file as it was. Zero or negative is unknown.
	Size int64
}

// ReadFileOptions refine ReadFile.
type ReadFileOptions struct {
	Offset int64
	// Limit is the most bytes to read; the file may be longer. Zero reads to the end, and a rest that is longer than
	// Options.MaxFileBytes is backend.ErrTooLarge.
	Limit int64
}

// ListFilesOptions refine ListFiles.
type ListFilesOptions struct {
	Recursive bool
	Limit     int // most entries, up to MaxListEntries; zero is DefaultListEntries
}

// FileList answers ListFiles; entries are sorted by path, symlinks are never followed.
type FileList struct {
	Entries   []FileInfo
	Total     int64 // entries there are, at least
	Truncated bool
}
