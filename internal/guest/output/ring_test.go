//go:build linux

package output

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestRing verifies that a ring returns exactly the latest added bytes, in order, for random sizes.
func TestRing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rnd, bytesOf := rand.New(rand.NewPCG(seed, 1)), rand.NewChaCha8([32]byte{byte(seed)})
		r := newRing()
		limit := chunkMax + rnd.IntN(200_000)
		var all []byte
		held, since := 0, int64(0)
		var got []byte
		lost := false
		for range 100 + rnd.IntN(300) {
			p := make([]byte, 1+rnd.IntN(1+rnd.IntN(chunkMax)))
			_, _ = bytesOf.Read(p) // documented to never fail
			all = append(all, p...)
			held += r.add(wire.ChanStdout+wire.Channel(rnd.IntN(2)), p, limit)
			if held != len(r.buf) || held > limit || r.used+len(r.chunks)*chunkCost > max(limit, chunkMax+chunkCost) {
				t.Fatalf("seed %d: holds %d bytes, says %d, may %d", seed, len(r.buf), held, limit)
			}
			if rnd.IntN(10) == 0 {
				chunks, dropped := r.read(since, 1+rnd.IntN(50), 1+rnd.IntN(100_000))
				if dropped > 0 {
					lost, got = true, nil
				}
				for _, c := range chunks {
					if c.Seq <= since || len(c.Data) == 0 || len(c.Data) > chunkMax {
						t.Fatalf("seed %d: chunk %d of %d bytes after %d", seed, c.Seq, len(c.Data), since)
					}
					since = c.Seq
					got = append(got, c.Data...)
				}
			}
		}
		before, _ := r.read(0, 1<<30, 1<<30)
		held -= r.trim()
		after, _ := r.read(0, 1<<30, 1<<30)
		if len(before) != len(after) || held != len(r.buf) {
			t.Fatalf("seed %d: trimming lost chunks", seed)
		}
		rest, dropped := r.read(since, 1<<30, 1<<30)
		if dropped > 0 {
			lost, got = true, nil
		}
		for _, c := range rest {
			got = append(got, c.Data...)
		}
		if !lost && !bytes.Equal(got, all) || !bytes.HasSuffix(all, got) {
			t.Fatalf("seed %d: read %d bytes of %d, lost %v", seed, len(got), len(all), lost)
		}
		if held -= r.release(); held != 0 || r.buf != nil {
			t.Fatalf("seed %d: %d bytes are left", seed, held)
		}
		if _, dropped := r.read(0, 10, 10); dropped != r.nextSeq()-1 {
			t.Fatalf("seed %d: after the release %d are dropped", seed, dropped)
		}
	}
}

// TestRingChunksDoNotChange verifies that repeated reads return the same chunks, even if small output could be appended
// to the last chunk.
func TestRingChunksDoNotChange(t *testing.T) {
	t.Parallel()
	r := newRing()
	r.add(wire.ChanStdout, []byte("a"), ringMax)
	r.add(wire.ChanStdout, []byte("b"), ringMax)
	first, _ := r.read(0, 10, 1000)
	r.add(wire.ChanStdout, []byte("c"), ringMax)
	r.add(wire.ChanStderr, []byte("d"), ringMax)
	again, _ := r.read(0, 10, 1000)
	if len(first) != 1 || string(first[0].Data) != "ab" || len(again) != 3 || string(again[0].Data) != "ab" ||
		string(again[1].Data) != "c" || again[2].Stream != wire.Stderr {
		t.Errorf("first %+v, again %+v", first, again)
	}
}

func TestKeeper(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		k := &keeper{headMax: rnd.IntN(50), tailMax: rnd.IntN(50)}
		var all []byte
		for range rnd.IntN(30) {
			p := make([]byte, rnd.IntN(40))
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
			if fits := len(all)+len(p) <= k.headMax+k.tailMax; fits != k.fits(len(p)) {
				t.Fatalf("seed %d: fits %v", seed, !fits)
			}
			all = append(all, p...)
			k.add(p)
		}
		o := k.output()
		head := all[:min(len(all), k.headMax)]
		tail := all[len(head):]
		tail = tail[len(tail)-min(len(tail), k.tailMax):]
		if !bytes.Equal(o.Head, head) || !bytes.Equal(o.Tail, tail) || o.Total != int64(len(all)) || o.Omitted != o.Total-int64(len(head)+len(tail)) {
			t.Fatalf("seed %d: head %d of %d, tail %d of %d, %d omitted", seed, len(o.Head), len(head), len(o.Tail), len(tail), o.Omitted)
		}
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	var b Budget
	if got := b.limit(0); got != ringMax {
		t.Errorf("a ring may hold %d bytes of an unused budget", got)
	}
	b.add(ringBudget)
	if got := b.limit(0); got != ringFloor {
		t.Errorf("a ring may hold %d bytes of a spent budget", got)
	}
	if got := b.limit(ringMax); got != ringMax {
		t.Errorf("a ring that holds %d bytes may hold %d", ringMax, got)
	}
	b = Budget{}
	r := NewRecorder(&wire.RunRequest{HeadBytes: 10}, &b, nil, nil, nil)
	r.write(wire.ChanStdout, make([]byte, chunkMax))
	r.Ended()
	r.write(wire.ChanStdout, make([]byte, 4*chunkMax)) // by a process that outlives the command
	ended := b.ended.Load()
	r.Forget()
	r.write(wire.ChanStdout, make([]byte, chunkMax))
	if b.used.Load() != 0 || b.ended.Load() != 0 || ended < 4*chunkMax {
		t.Errorf("a forgotten command uses %d bytes, an ended one %d", b.used.Load(), ended)
	}
}
