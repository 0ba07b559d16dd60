package files

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Digest handles wire.OpDigest.
func (s *Service) Digest(r Request, req *wire.DigestRequest) error {
	if len(req.Paths) > wire.MaxDigests {
		return wire.Errorf(wire.CodeInvalid, "%d paths, at most %d are allowed", len(req.Paths), wire.MaxDigests)
	}
	digests := make([]wire.Digest, len(req.Paths))
	buf := make([]byte, wire.MaxData)
	for i, p := range req.Paths {
		root, rel, err := s.locate(p)
		if err != nil {
			return err
		}
		digests[i] = s.digest(root, rel, buf)
	}
	return r.Answer(wire.DigestResult{Digests: digests})
}

// digest describes one entry. If the entry cannot be read, the description has no checksum, and a later read reports
// the error.
func (s *Service) digest(root *root, rel string, buf []byte) (d wire.Digest) {
	var f *os.File
	err := s.fs.Do(func() error {
		st, err := root.Lstat(rel)
		if err != nil {
			return err
		}
		if st.Mode()&os.ModeSymlink != 0 {
			target, err := root.Readlink(rel)
			d.Target = []byte(target)
			return err
		}
		f, _, err = root.openRegular(rel)
		return err
	})
	if err != nil || f == nil {
		return d
	}
	defer f.Close()
	h := sha256.New()
	for err == nil {
		var n int
		err = s.fs.Do(func() (err error) { n, err = f.Read(buf); return err })
		h.Write(buf[:n])
	}
	if errors.Is(err, io.EOF) {
		d.SHA256 = h.Sum(nil)
	}
	return d
}
