package files

import (
	"errors"
	"io"
	"os"
	"slices"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Get handles wire.OpFileGet.
func (s *Service) Get(r Request, req *wire.FileGetRequest) error {
	root, rel, err := s.locate(req.Path)
	if err != nil {
		return err
	}
	if req.Offset < 0 {
		return wire.Errorf(wire.CodeInvalid, "the offset is negative")
	}
	var f *os.File
	var info wire.FileInfo
	err = s.fs.Do(func() (err error) { f, info, err = root.openRegular(rel); return err })
	if err != nil {
		return pathError(err, req.Path)
	}
	defer f.Close()
	left := req.Length
	if left < 0 {
		left = max(0, info.Size-req.Offset)
	}
	return pathError(s.sendFile(r, f, &info, req.Offset, left), req.Path)
}

// openRegular opens a regular file for reading and describes it. It rejects other types before it opens the file. If
// another type replaced the file in the meantime, openRegular rejects it before reading. Opening never waits for the
// other end of a FIFO.
func (r *root) openRegular(rel string) (*os.File, wire.FileInfo, error) {
	var st os.FileInfo
	err := r.within(rel, func(rel string) (err error) {
		st, err = r.Stat(rel)
		return err
	})
	if err != nil {
		return nil, wire.FileInfo{}, err
	}
	if !st.Mode().IsRegular() {
		return nil, wire.FileInfo{}, notRegular(rel, st.IsDir())
	}
	f, err := r.open(rel, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, wire.FileInfo{}, err
	}
	var now unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &now); err != nil {
		_ = f.Close() // only opened
		return nil, wire.FileInfo{}, err
	}
	if now.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = f.Close() // only opened
		return nil, wire.FileInfo{}, notRegular(rel, false)
	}
	return f, fileInfo(r.shown(rel), &now), nil
}

func notRegular(p string, dir bool) error {
	if dir {
		return wire.Errorf(wire.CodeInvalid, "%s: is a directory", show(p))
	}
	return wire.Errorf(wire.CodeInvalid, "%s: not a regular file", show(p))
}

// sendFile sends the description and at most left bytes from offset on. A small file needs one write.
func (s *Service) sendFile(r Request, f *os.File, info *wire.FileInfo, offset, left int64) error {
	out, err := wire.AppendAnswer(make([]byte, 0, 1024+min(left, wire.MaxData)), info)
	if err != nil {
		return err
	}
	for left > 0 {
		at := len(out) + wire.FramePrefixSize
		size := int(min(left, wire.MaxData))
		out = slices.Grow(out, wire.FramePrefixSize+size)[:at+size]
		n := 0
		err := s.fs.Do(func() (err error) {
			n, err = f.ReadAt(out[at:], offset)
			return err
		})
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		out = out[:at+n]
		wire.PutDataPrefix(out[at-wire.FramePrefixSize:], wire.ChanFile, n)
		offset, left = offset+int64(n), left-int64(n)
		if err != nil || left == 0 {
			break
		}
		if _, err := r.Write(out); err != nil {
			return nil // the host has disconnected
		}
		out = out[:0]
	}
	_, _ = r.Write(wire.AppendEOF(out, wire.ChanFile)) // the host may have disconnected
	return nil
}
