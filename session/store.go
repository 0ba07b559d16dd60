package session

import (
	"context"
	"time"
)

// RecordState is the state of a recorded sandbox.
type RecordState string

// States of records. Creating and ready records are live: they hold their key.
const (
	RecordCreating RecordState = "creating" // the engine may or may not have it yet
	RecordReady    RecordState = "ready"
	RecordRemoving RecordState = "removing" // to be removed at Expires; the engine may still have it
	RecordClosed   RecordState = "closed"   // gone, its id is remembered
	RecordLost     RecordState = "lost"     // died behind our back, its id is remembered
)

// Live tells whether a record in that state holds its key.
func (s RecordState) Live() bool { return s == RecordCreating || s == RecordReady }

// Record is what is kept of one sandbox beside the labels on the engine. It holds no environment and no secret.
type Record struct {
	ID        string // session id
	Key       Key
	EngineID  string // empty while creating
	Hash      string // backend.Spec.Hash
	State     RecordState
	Created   time.Time
	LastUsed  time.Time
	Expires   time.Time     // when it may be reaped, or removed in RecordRemoving; zero is never
	Retention time.Duration // Request.Retention
}

// Store keeps records. All methods may be called concurrently. Times may lose their monotonic part and precision
// below a microsecond. Package session/storetest holds the suite that every implementation must pass.
type Store interface {
	// Insert must add rec. It must fail with backend.ErrExists when the id is known or a live record holds the key, so
	// that two processes cannot both make the sandbox of one key.
	Insert(ctx context.Context, rec Record) error
	// Update must replace the record with rec.ID; backend.ErrNotFound when there is none, backend.ErrExists when rec is
	// live and another live record holds the key.
	Update(ctx context.Context, rec Record) error
	// Touch must set LastUsed and Expires of a live record; backend.ErrNotFound when there is none.
	Touch(ctx context.Context, id string, lastUsed, expires time.Time) error
	// Get must return the record, or backend.ErrNotFound.
	Get(ctx context.Context, id string) (Record, error)
	// List must return the records in one of states (all when none is given), sorted by Created, then ID.
	List(ctx context.Context, states ...RecordState) ([]Record, error)
	// Delete must forget a record; an unknown id is no error.
	Delete(ctx context.Context, id string) error
}
