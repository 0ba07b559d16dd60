package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// MemoryStore is a Store that ends with the process. The zero value is ready; safe for concurrent use.
type MemoryStore struct {
	mu      sync.Mutex // guards the maps
	records map[string]Record
	live    map[place]string // id of the live record of a key
	owners  map[string]struct{}
}

// place is where there is room for one live record.
type place struct {
	engine string
	key    Key
}

func placeOf(rec Record) place { return place{rec.Engine, rec.Key} }

// NewMemoryStore makes an empty store.
func NewMemoryStore() *MemoryStore { return &MemoryStore{} }

// Join makes an owner.
func (s *MemoryStore) Join(ctx context.Context) (string, func() error, error) {
	if err := ctx.Err(); err != nil {
		return "", nil, err
	}
	owner := NewID()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners == nil {
		s.owners = map[string]struct{}{}
	}
	s.owners[owner] = struct{}{}
	return owner, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.owners, owner)
		return nil
	}, nil
}

// Lives reports whether an owner lives.
func (s *MemoryStore) Lives(ctx context.Context, owner string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.owners[owner]
	return ok, nil
}

// Insert adds rec.
func (s *MemoryStore) Insert(ctx context.Context, rec Record) error {
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

// Update replaces a record.
func (s *MemoryStore) Update(ctx context.Context, rec Record) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.records[rec.ID]; !ok {
		return noRecord(rec.ID)
	}
	return s.put(rec)
}

// put stores rec and keeps the index of live keys right; mu is held.
func (s *MemoryStore) put(rec Record) error {
	holder, held := s.live[placeOf(rec)]
	if rec.State.Live() && held && holder != rec.ID {
		return fmt.Errorf("%w: live sandbox of session %s", backend.ErrExists, rec.Key)
	}
	if s.records == nil {
		s.records, s.live = map[string]Record{}, map[place]string{}
	}
	s.records[rec.ID] = rec
	switch {
	case rec.State.Live():
		s.live[placeOf(rec)] = rec.ID
	case holder == rec.ID:
		delete(s.live, placeOf(rec))
	}
	return nil
}

// Take returns a record to another owner.
func (s *MemoryStore) Take(ctx context.Context, id, from, to string) (Record, error) {
	if err := ctx.Err(); err != nil {
		return Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.records[id]
	if !ok {
		return Record{}, noRecord(id)
	}
	if rec.Owner != from {
		return Record{}, fmt.Errorf("%w: sandbox %s has another owner", backend.ErrExists, id)
	}
	rec.Owner = to
	s.records[id] = rec
	return rec, nil
}

// Touch notes the use of a live record.
func (s *MemoryStore) Touch(ctx context.Context, id string, lastUsed, expires time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.records[id]
	if !ok || !rec.State.Live() {
		return noRecord(id)
	}
	rec.LastUsed, rec.Expires = lastUsed, expires
	s.records[id] = rec
	return nil
}

// Get returns a record.
func (s *MemoryStore) Get(ctx context.Context, id string) (Record, error) {
	if err := ctx.Err(); err != nil {
		return Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.records[id]
	if !ok {
		return Record{}, noRecord(id)
	}
	return rec, nil
}

// List returns the records in the given states.
func (s *MemoryStore) List(ctx context.Context, states ...RecordState) ([]Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	var recs []Record
	for _, rec := range s.records {
		if len(states) == 0 || slices.Contains(states, rec.State) {
			recs = append(recs, rec)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(recs, func(a, b Record) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return recs, nil
}

// Delete forgets a record.
func (s *MemoryStore) Delete(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec, ok := s.records[id]; ok && s.live[placeOf(rec)] == id {
		delete(s.live, placeOf(rec))
	}
	delete(s.records, id)
	return nil
}

// noRecord is the error for an unknown id.
func noRecord(id string) error {
	return fmt.Errorf("%w: record of sandbox %s", backend.ErrNotFound, id)
}
