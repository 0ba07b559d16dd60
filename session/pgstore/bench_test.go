package pgstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/pgstore"
)

// BenchmarkList lists 10,000 records.
func BenchmarkList(b *testing.B) {
	url := pgtest.Database(b)
	s, err := pgstore.Open(b.Context(), url)
	must(b, err)
	defer s.Close() //nolint:errcheck // the database goes with the benchmark
	const records = 10_000
	for i := range records {
		must(b, s.Insert(b.Context(), session.Record{
			ID: fmt.Sprintf("sbx_%026d", i), Key: session.UserKey(fmt.Sprint("box", i)), Engine: "docker-1", EngineID: fmt.Sprint(i),
			Request: `{"image":"debian:12"}`, State: session.RecordReady, Created: time.Now(), LastUsed: time.Now(),
		}))
	}
	for b.Loop() {
		if list, err := s.List(b.Context()); err != nil || len(list) != records {
			b.Fatalf("%d records, %v", len(list), err)
		}
	}
}
