// Package audit writes decisions and commands to a file, with one line of JSON for each sandbox, tool call, command,
// end of a command, and connection. The package only appends to the file. A program such as logrotate can rotate it.
//
// If a record cannot be written, the described operation fails: a command does not start, and a tool does not run.
// Therefore, nothing happens without a record, except for the end of operations in progress.
package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Events of records.
const (
	EventOpen    = "open"    // a sandbox is about to be opened
	EventTool    = "tool"    // a tool call was decided on
	EventCommand = "command" // a command is about to be started
	EventExit    = "exit"    // a command ended, or was left running
	EventEgress  = "egress"  // a connection to a host is about to be made, or may not be
	EventUI      = "ui"      // an action on a page of `workcell ui` is about to be done
	EventService = "service" // a request to an HTTP service is about to be sent, or may not be
)

// Decisions.
const (
	Allowed = "allowed"
	Refused = "refused"
)

// Record is a line of the file. Fields that do not apply to an event are omitted.
type Record struct {
	Time       time.Time `json:"time"`
	Event      string    `json:"event"`
	Run        string    `json:"run,omitempty"`
	Step       string    `json:"step,omitempty"` // the step's path
	Agent      string    `json:"agent,omitempty"`
	Tool       string    `json:"tool,omitempty"`
	Sandbox    string    `json:"sandbox,omitempty"`
	Key        string    `json:"key,omitempty"` // the key of the sandbox
	Image      string    `json:"image,omitempty"`
	Exec       string    `json:"exec,omitempty"`
	Argv       []string  `json:"argv,omitempty"`
	Host       string    `json:"host,omitempty"`        // with the port
	Request    string    `json:"request,omitempty"`     // method and path, without the query
	By         string    `json:"by,omitempty"`          // the logged-in user of a page
	ArgvSHA256 string    `json:"argv_sha256,omitempty"` // of the arguments, each followed by a zero byte
	Status     string    `json:"status,omitempty"`      // of a command
	Exit       *int      `json:"exit,omitempty"`        // absent when a signal ended it, and while it runs
	Signal     string    `json:"signal,omitempty"`
	DurationMS int64     `json:"duration_ms,omitempty"`
	Decision   string    `json:"decision,omitempty"`
	Rule       string    `json:"rule,omitempty"`      // of the refusal
	Error      string    `json:"error,omitempty"`     // the class of a failure
	Isolation  string    `json:"isolation,omitempty"` // of the sandbox, or of a new one
	Backend    string    `json:"backend,omitempty"`
	Policy     string    `json:"policy,omitempty"` // SHA-256 of the settings

	// Settings are the settings with the digest Policy. A Log writes them once for each digest.
	Settings json.RawMessage `json:"settings,omitempty"`
}

// Log is an audit file. It is safe for concurrent use, and several processes can share a file.
type Log struct {
	o Options

	mu    sync.Mutex // guards the fields below
	file  *os.File
	err   error           // the first failure: nothing is written, nor done, after it
	known map[string]bool // policies whose settings were written
}

// Options are optional settings for Open.
type Options struct {
	Hash      bool        // replaces the arguments of commands by their hash, because they can contain secrets
	OnFailure func(error) // called with the first failure to write; may be nil
}

// ErrWrite means that a record could not be written.
var ErrWrite = errors.New("cannot write the audit file")

// Open opens the file at path for appending. If it does not exist, Open creates it with mode 0600. If a full disk has
// cut the last line, Open ends the line.
func Open(path string, o Options) (*Log, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	last := []byte{'\n'}
	if st, err := file.Stat(); err == nil && st.Mode().IsRegular() { // neither a pipe nor a device
		if r, err := os.Open(path); err == nil {
			_, _ = r.ReadAt(last, st.Size()-1) // an empty or unreadable file keeps its line
			_ = r.Close()                      // only read
		}
	}
	if last[0] != '\n' {
		if _, err := file.WriteString("\n"); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	return &Log{o: o, file: file, known: map[string]bool{}}, nil
}

// Close closes the log. It returns the first error of all writes.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return l.err
	}
	st, err := l.file.Stat()
	if err == nil && st.Mode().IsRegular() { // pipes and devices cannot be synchronized
		err = l.file.Sync()
	}
	err = errors.Join(err, l.file.Close())
	l.file = nil
	if l.err == nil && err != nil {
		l.err = fmt.Errorf("%w: %w", ErrWrite, err)
	}
	return l.err
}

// Write appends a record. If Write returns nil, the operating system has the line, which is therefore not lost if this
// process is killed.
func (l *Log) Write(r Record) error {
	if r.Time.IsZero() {
		r.Time = time.Now().UTC()
	}
	if l.o.Hash && r.Argv != nil {
		sum := sha256.Sum256([]byte(strings.Join(r.Argv, "\x00") + "\x00"))
		r.Argv, r.ArgvSHA256 = nil, hex.EncodeToString(sum[:])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if l.known[r.Policy] {
		r.Settings = nil
	}
	l.known[r.Policy] = l.known[r.Policy] || r.Settings != nil
	line, err := json.Marshal(r)
	if err == nil && l.file == nil {
		err = os.ErrClosed
	}
	if err == nil { // one write, to prevent a mix of lines of several processes
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

type (
	logKey    struct{} // holds the *Log of a context
	recordKey struct{} // holds a Record with the fields for everything under a context
)

// MaxRefused is the maximum number of refusals that a gateway records for each sandbox that a process opens. Code in a
// loop would fill the disk.
const MaxRefused = 10_000

// NewContext returns a context under which Note writes to l.
func NewContext(ctx context.Context, l *Log) context.Context {
	return context.WithValue(ctx, logKey{}, l)
}

// With returns a context whose records start with the fields from set.
func With(ctx context.Context, set func(*Record)) context.Context {
	if _, ok := ctx.Value(logKey{}).(*Log); !ok {
		return ctx
	}
	r, _ := ctx.Value(recordKey{}).(Record)
	set(&r)
	return context.WithValue(ctx, recordKey{}, r)
}

// Note writes a record to the log in ctx, with the fields from With. If ctx has no log, Note does nothing.
func Note(ctx context.Context, set func(*Record)) error {
	l, ok := ctx.Value(logKey{}).(*Log)
	if !ok {
		return nil
	}
	r, _ := ctx.Value(recordKey{}).(Record)
	set(&r)
	return l.Write(r)
}
