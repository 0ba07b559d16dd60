// Package replica has several MCP servers over HTTP serve the same clients, so that it does not matter which of them a request
// comes to. What they share of their clients is in a [Registry], their sandboxes in a session.Store; each of them makes what
// the library needs to answer in a session when the first request of the session comes.
package replica

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"strings"
	"time"
)

// Entry is a session of a client, or a conversation of execute_task within one.
type Entry struct {
	ID     string
	Parent string // the run of the session that a conversation is part of; empty for a session
	Owner  string // whose it is
	Run    string // of its sandboxes
	Origin string // the server that began it
	Params []byte // of the request that began a session
}

// Limits bound how many entries there may be with the same Parent. Zero is no bound.
type Limits struct {
	Owner int // of the same owner
	All   int
}

// Errors of a Registry, beside backend.ErrNotFound.
var (
	ErrOwnerFull = errors.New("the owner has as many as one may have")
	ErrFull      = errors.New("there are as many as there may be")
	ErrOwner     = errors.New("it belongs to another owner")
	ErrExists    = errors.New("it is there already")
	ErrTooLong   = errors.New("the message is too long to be passed on")
)

// Registry keeps what the servers share. All methods may be called concurrently, also by other processes.
type Registry interface {
	// Begin must add an entry, which counts as a use; ErrExists when there is one with its ID, ErrOwnerFull or ErrFull when there
	// are too many.
	Begin(ctx context.Context, e Entry, l Limits) error
	// Use must return an entry and count that as a use; backend.ErrNotFound when there is none, ErrOwner when it is another's,
	// whose use this is not.
	Use(ctx context.Context, id, owner string) (Entry, error)
	// Below must return the entries with a Parent.
	Below(ctx context.Context, parent string) ([]Entry, error)
	// End must remove an entry, with those below its run, and return them. Each is returned to one caller.
	End(ctx context.Context, id string) ([]Entry, error)
	// EndIdle must do so for the entries that were not used for that long.
	EndIdle(ctx context.Context, idle time.Duration) ([]Entry, error)
	// Tell must pass a message on to all who hear, this process included; ErrTooLong when it is too long for that.
	Tell(ctx context.Context, m Message) error
	// Hear must call heard for each message until ctx ends or it does not hear any more, which is an error.
	Hear(ctx context.Context, heard func(Message)) error
}

// Message is what one server tells the others.
type Message struct {
	From    string   `json:"from"`              // the server's Origin
	Session string   `json:"session,omitempty"` // to which Body was sent, which is no call: whichever server has to do with it takes it
	Body    string   `json:"body,omitempty"`
	Ended   []string `json:"ended,omitempty"` // runs that are over
}

// OwnerRun returns the id of the run of an owner's requests that are part of no session: the same for every server.
func OwnerRun(owner string) string {
	sum := sha256.Sum256([]byte("requests of " + owner))
	return "run_" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

// Runs returns the runs of entries.
func Runs(entries []Entry) []string {
	runs := make([]string, len(entries))
	for i, e := range entries {
		runs[i] = e.Run
	}
	return runs
}
