// Package audit writes what was decided and run to a file: one line of JSON for each tool call, sandbox, command and its
// end. The file is appended to and never shortened; when it is large it is renamed, and nobody deletes the old ones.
//
// A record that cannot be written is an error of what it is about: a command is not started, a tool not run. So nothing is
// done that is not on record, but for the end of what was under way.
package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// maxFile is the size in bytes at which the file is renamed.
const maxFile = 64 << 20

// Events of records.
const (
	EventOpen    = "open"    // a sandbox is about to be opened
	EventTool    = "tool"    // a tool call was decided on
	EventCommand = "command" // a command is about to be started
	EventExit    = "exit"    // a command ended, or was left running
	EventEgress  = "egress"  // a connection to a host is about to be made, or may not be
	EventTorn    = "torn"    // the line before was not written to its end
)

// Decisions.
const (
	Allowed = "allowed"
	Refused = "refused"
)

// Record is a line. What is not known of an event is left out.
type Record struct {
	Time       time.Time `json:"time"`
	Event      string    `json:"event"`
	Run        string    `json:"run,omitempty"`
	Step       string    `json:"step,omitempty"` // its path
	Agent      string    `json:"agent,omitempty"`
	Tool       string    `json:"tool,omitempty"`
	Sandbox    string    `json:"sandbox,omitempty"`
	Key        string    `json:"key,omitempty"` // of the sandbox
	Image      string    `json:"image,omitempty"`
	Exec       string    `json:"exec,omitempty"`
	Argv       []string  `json:"argv,omitempty"`
	Host       string    `json:"host,omitempty"`        // with its port
	ArgvSHA256 string    `json:"argv_sha256,omitempty"` // of the arguments, each followed by a zero byte
	Status     string    `json:"status,omitempty"`      // of a command
	Exit       *int      `json:"exit,omitempty"`        // absent when a signal ended it, and while it runs
	Signal     string    `json:"signal,omitempty"`
	DurationMS int64     `json:"duration_ms,omitempty"`
	Decision   string    `json:"decision,omitempty"`
	Rule       string    `json:"rule,omitempty"`  // that refused
	Error      string    `json:"error,omitempty"` // the class of a failure
}

// Log is an audit file. It is safe for concurrent use; several processes may have one file.
type Log struct {
	path string
	o    Options
	max  int64

	mu   sync.Mutex // guards file and err
	file *os.File
	err  error // the first failure: nothing is written, nor done, after it
}

// Options refine Open.
type Options struct {
	Hash      bool        // replaces the arguments of commands, which may hold secrets, by their hash
	OnFailure func(error) // is called with the first failure to write; may be nil
}

// ErrWrite: a record could not be written.
var ErrWrite = errors.New("cannot write the audit file")

// Open opens the file at path for appending; one that is not there is made, for its owner alone to read. A link is followed
// now, and not again: what is written later is written to the place that the caller meant.
func Open(path string, o Options) (*Log, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil { // else it is not there yet, or no file: a pipe
		path = real
	}
	l := &Log{path: path, o: o, max: maxFile}
	if err := l.open(); err != nil {
		return nil, err
	}
	if err := l.mend(); err != nil {
		return nil, errors.Join(err, l.file.Close())
	}
	return l, nil
}

func (l *Log) open() (err error) {
	l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return err
}

// reopen opens the file that is to follow one that was renamed. A link, which somebody put there meanwhile, is an error.
func (l *Log) reopen() error {
	if there, err := os.Lstat(l.path); err == nil && !there.Mode().IsRegular() {
		return fmt.Errorf("%s is no longer a file", l.path)
	}
	if err := l.open(); err != nil {
		return err
	}
	here, err := l.file.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) { // another process has renamed this one, too
		return nil
	}
	if err == nil && !os.SameFile(here, there) && !there.Mode().IsRegular() {
		err = fmt.Errorf("%s is now a link", l.path)
	}
	return err
}

// settle is longer than another process takes to write a line.
const settle = 20 * time.Millisecond

// mend ends a line that was not written to its end, by a process that died, or found the disk full, and says so.
func (l *Log) mend() error {
	at := l.torn()
	if at == 0 {
		return nil
	}
	time.Sleep(settle)
	if l.torn() != at {
		return nil
	}
	line, err := json.Marshal(Record{Time: time.Now().UTC(), Event: EventTorn})
	if err == nil {
		_, err = l.file.WriteString("\n" + string(line) + "\n")
	}
	return err
}

// torn returns the size of the file when it ends within a line, else 0.
func (l *Log) torn() int64 {
	f, err := os.Open(l.path)
	if err != nil {
		return 0 // one that may be written and not read
	}
	defer f.Close() // only read from
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return 0
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return 0
	}
	return info.Size()
}

// Close ends the log. The error is the first failure of all that was written.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return l.err
	}
	err := errors.Join(l.file.Sync(), l.file.Close())
	l.file = nil
	if l.err == nil && err != nil {
		l.err = fmt.Errorf("%w: %w", ErrWrite, err)
	}
	return l.err
}

// Write appends a record. When it returns nil the line is the system's, which writes it also when this process is killed.
func (l *Log) Write(r Record) error {
	if r.Time.IsZero() {
		r.Time = time.Now().UTC()
	}
	if l.o.Hash && r.Argv != nil {
		sum := sha256.Sum256([]byte(strings.Join(r.Argv, "\x00") + "\x00"))
		r.Argv, r.ArgvSHA256 = nil, hex.EncodeToString(sum[:])
	}
	line, err := json.Marshal(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if err == nil {
		err = l.rotate()
	}
	if err == nil { // in one call, so that lines of several processes do not mix
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		l.err = fmt.Errorf("%w: %w", ErrWrite, err)
		if l.o.OnFailure != nil {
			l.o.OnFailure(l.err)
		}
	}
	return l.err
}

// rotate makes sure that there is a file with room at path: somebody else may have renamed it. l.mu is held.
func (l *Log) rotate() error {
	if l.file == nil {
		return os.ErrClosed
	}
	here, err := l.file.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(l.path)
	same := err == nil && os.SameFile(here, there)
	if same && (here.Size() < l.max || !here.Mode().IsRegular()) {
		return nil
	}
	if err := errors.Join(l.file.Sync(), l.file.Close()); err != nil {
		return err
	}
	if same {
		// The time and the process make the name one that is not there yet.
		old := fmt.Sprintf("%s.%s-%d", l.path, time.Now().UTC().Format("20060102T150405.000000000Z"), os.Getpid())
		if err := os.Rename(l.path, old); err != nil && !errors.Is(err, fs.ErrNotExist) { // another process was faster
			return err
		}
	}
	return l.reopen()
}

type (
	logKey    struct{} // holds the *Log of a context
	recordKey struct{} // holds a Record, what is known of all that is done under a context
)

// NewContext returns a context whose calls are recorded in l.
func NewContext(ctx context.Context, l *Log) context.Context {
	return context.WithValue(ctx, logKey{}, l)
}

// With returns a context under which set was called on every record.
func With(ctx context.Context, set func(*Record)) context.Context {
	if _, ok := ctx.Value(logKey{}).(*Log); !ok {
		return ctx
	}
	r, _ := ctx.Value(recordKey{}).(Record)
	set(&r)
	return context.WithValue(ctx, recordKey{}, r)
}

// Note writes a record, with what With set, to the log that ctx has. It does nothing where there is none.
func Note(ctx context.Context, set func(*Record)) error {
	l, ok := ctx.Value(logKey{}).(*Log)
	if !ok {
		return nil
	}
	r, _ := ctx.Value(recordKey{}).(Record)
	set(&r)
	return l.Write(r)
}
