package sizedfs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Maker makes file systems. The first of a kind takes some tens of milliseconds, of mkfs and of a mount; those after it
// one, because what was written for the first is remembered. The zero value is ready for use, by several at once.
type Maker struct {
	mu    sync.Mutex // guards known
	known map[Spec]*pattern
}

// A maker keeps so many patterns of at most so many bytes; most have a few hundred thousand.
const (
	maxPatterns     = 8
	maxPatternBytes = 4 << 20
)

// Format makes a file that holds an empty file system. It must not be there, and is not when Format fails. A disk that has
// no room for all that the file system may take, and something beside it, is ENOSPC.
func (m *Maker) Format(ctx context.Context, file string, s Spec) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, total := s.geometry()
	if err = room(f, total); err == nil {
		overwritten(f)
		err = m.fill(ctx, f, file, s)
	}
	if err == nil {
		err = reserve(f, s) // last, for mkfs leaves holes
	}
	if err = errors.Join(err, f.Close()); err != nil {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// fill writes the file system.
func (m *Maker) fill(ctx context.Context, f *os.File, file string, s Spec) error {
	if p := m.pattern(s); p != nil {
		return p.stamp(f)
	}
	if err := format(ctx, f, file, s); err != nil {
		return err
	}
	m.learn(s, f)
	return nil
}

func (m *Maker) pattern(s Spec) *pattern {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[s]
}

// learn remembers a new file system. One that cannot be remembered is made as before the next time.
func (m *Maker) learn(s Spec, f *os.File) {
	p, err := read(f)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil || len(m.known) >= maxPatterns {
		m.known = map[Spec]*pattern{}
	}
	m.known[s] = p
}

// pattern is what a file holds that is otherwise a hole.
type pattern struct {
	size  int64
	parts []part
	super [superBytes]byte
}

type part struct {
	at   int64
	data []byte
}

// Where ext4 has its superblock, and what in it.
const (
	superAt    = 1024
	superBytes = 1024

	superState    = 0x3a // 16 bits; the lowest is set when it was unmounted
	superIncompat = 0x60 // 32 bits
	superUUID     = 0x68
	superChecksum = 0x3fc // of all before

	needsRecovery = 0x4
	partBytes     = 4096
)

var errUnfit = errors.New("no pattern")

// read takes the pattern of a file system that nobody has mounted. A process that was just being made when it was
// unmounted may hold the mount for a moment.
func read(f *os.File) (*pattern, error) {
	p := &pattern{}
	if _, err := f.ReadAt(p.super[:], superAt); err != nil {
		return nil, err
	}
	if p.super[superState]&1 == 0 || binary.LittleEndian.Uint32(p.super[superIncompat:])&needsRecovery != 0 {
		return nil, errUnfit
	}
	var err error
	if p.size, err = f.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	for at, left := int64(0), maxPatternBytes; ; {
		if at, err = unix.Seek(int(f.Fd()), at, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
			return p, nil
		}
		if err != nil {
			return nil, err
		}
		at -= at % partBytes
		data := make([]byte, partBytes)
		n, err := f.ReadAt(data, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if left -= n; left < 0 {
			return nil, errUnfit
		}
		if data = data[:n]; len(bytes.Trim(data, "\x00")) > 0 {
			p.parts = append(p.parts, part{at, data})
		}
		if at += partBytes; at >= p.size {
			return p, nil
		}
	}
}

// stamp writes the pattern to an empty file, under an identity of its own.
func (p *pattern) stamp(f *os.File) error {
	if err := f.Truncate(p.size); err != nil {
		return err
	}
	for _, part := range p.parts {
		if _, err := f.WriteAt(part.data, part.at); err != nil {
			return err
		}
	}
	super := p.super
	uuid := super[superUUID : superUUID+16]
	_, _ = rand.Read(uuid) // never fails
	uuid[6], uuid[8] = uuid[6]&0x0f|0x40, uuid[8]&0x3f|0x80
	// The kernel's CRC is the usual one without its last step.
	sum := ^crc32.Checksum(super[:superChecksum], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(super[superChecksum:], sum)
	_, err := f.WriteAt(super[:], superAt)
	return err
}
