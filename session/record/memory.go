package record

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// memoryStore is a Store in memory, which is lost when the process exits.
type memoryStore struct {
	mu      sync.Mutex // guards the maps
	records map[string]Record
	owners  map[string]struct{}
}

// NewMemoryStore returns an empty store in memory. The records are lost when the process exits.
func NewMemoryStore() Store {
	return &memoryStore{records: map[string]Record{}, owners: map[string]struct{}{}}
}

// Join creates an owner.
func (s *memoryStore) Join(ctx context.Context) (string, func() error, error) {
	if err := ctx.Err(); err != nil {
		return "", nil, err
	}
	owner := NewID()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owners[owner] = struct{}{}
	return owner, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.owners, owner)
		return nil
	}, nil
}

// Lives reports whether an owner is alive.
func (s *memoryStore) Lives(ctx context.Context, owner string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.owners[owner]
	return ok, nil
}

// Insert adds rec.
func (s *memoryStore) Insert(ctx context.Context, rec Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.records[rec.ID]; ok {
		return fmt.Errorf("%w: record of sandbox %s", backend.ErrExists, rec.ID)
	}
	return s.put(rec)
}

// put stores rec, unless another live record has the key. The caller must hold mu.
func (s *memoryStore) put(rec Record) error {
	for _, other := range s.records {
		sameKey := other.Key == rec.Key && other.Engine == rec.Engine
		if rec.State.Live() && other.State.Live() && other.ID != rec.ID && sameKey {
			return fmt.Errorf("%w: live sandbox %s", backend.ErrExists, rec.Key)
		}
	}
	s.records[rec.ID] = rec
	return nil
}

// change calls fn with a copy of a record, stores the result, and returns it.
func (s *memoryStore) change(ctx context.Context, id string, fn func(*Record) error) (Record, error) {
	if err := ctx.Err(); err != nil {
		return Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.records[id]
	if !ok {
		return Record{}, NotFound(id)
	}
	err := fn(&rec)
	if err == nil {
		err = s.put(rec)
	}
	if err != nil {
		return Record{}, err
	}
	return rec, nil
}

// Update replaces a record.
func (s *memoryStore) Update(ctx context.Context, rec Record) error {
	_, err := s.change(ctx, rec.ID, func(stored *Record) error { return stored.Update(rec) })
	return err
}

// Take changes the owner of a record.
func (s *memoryStore) Take(ctx context.Context, id, from, to string) (Record, error) {
	return s.change(ctx, id, func(stored *Record) error { return stored.Take(from, to) })
}

// Touch records the use of a live record.
func (s *memoryStore) Touch(ctx context.Context, id string, lastUsed, expires time.Time) error {
	_, err := s.change(ctx, id, func(stored *Record) error { return stored.Touch(lastUsed, expires) })
	return err
}

// Get returns a record.
func (s *memoryStore) Get(ctx context.Context, id string) (Record, error) {
	return s.change(ctx, id, func(*Record) error { return nil })
}

// List returns the records in the specified states.
func (s *memoryStore) List(ctx context.Context, states ...State) ([]Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var recs []Record
	for _, rec := range s.records {
		if len(states) == 0 || slices.Contains(states, rec.State) {
			recs = append(recs, rec)
		}
	}
	slices.SortFunc(recs, Record.Compare)
	return recs, nil
}

// Delete deletes a record.
func (s *memoryStore) Delete(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, id)
	return nil
}
