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
var ErrWrite = errors.New("the audit file cannot be written")

// Open opens the file at path for appending; one that is not there is made, for its owner alone to read.
func Open(path string, o Options) (*Log, error) {
	l := &Log{path: path, o: o, max: maxFile}
	return l, l.open()
}

func (l *Log) open() (err error) {
	l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return err
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
	return l.open()
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
