package files

import (
	"crypto/sha256"
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
	for i, p := range req.Paths {
		root, rel, err := s.locate(p)
		if err != nil {
			return err
		}
		// If the entry cannot be read, it has no checksum, and a later read reports the error.
		_ = s.fs.Do(func() (err error) { digests[i], err = root.digest(rel); return err })
	}
	return r.Answer(wire.DigestResult{Digests: digests})
}

// digest describes one entry.
func (r *root) digest(rel string) (d wire.Digest, err error) {
	st, err := r.Lstat(rel)
	if err != nil {
		return d, err
	}
	if st.Mode()&os.ModeSymlink != 0 {
		target, err := r.Readlink(rel)
		return wire.Digest{Target: []byte(target)}, err
	}
	f, info, err := r.openRegular(rel)
	if err != nil {
		return d, err
	}
	defer f.Close()
	d.SHA256, err = checksum(f, info.Size)
	return d, err
}

// checksum returns the checksum of a file of this size.
func checksum(f io.Reader, size int64) ([]byte, error) {
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, size+1)); err != nil { // a process may append without end
		return nil, err
	}
	return h.Sum(nil), nil
}
