package files

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path"

	"github.com/workcell-dev/workcell/internal/guest/disk"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Put handles wire.OpFilePut.
func (s *Service) Put(r Request, req *wire.FilePutRequest) error {
	root, rel, err := s.locate(req.Path)
	if err != nil {
		return err
	}
	if rel == "." {
		return notRegular(req.Path, true)
	}
	if req.Mode > 0o777 {
		return wire.Errorf(wire.CodeInvalid, "mode %#o must contain only permission bits", req.Mode)
	}
	if n := len(req.Was); n > 0 && n != sha256.Size {
		return wire.Errorf(wire.CodeInvalid, "a sum of %d bytes, it must have %d", n, sha256.Size)
	}
	release, err := root.reserve(max(req.Size, 0), 1)
	if err != nil {
		return err
	}
	defer release()
	var d *draft
	err = s.fs.Do(func() (err error) {
		if info, err := root.lstat(rel); len(req.Was) > 0 && err == nil && info.Type == wire.TypeSymlink {
			if rel, err = root.follow(rel); err != nil { // the target of the link is the file to change
				return err
			}
		}
		d, err = root.draft(rel, req)
		return err
	})
	if err != nil {
		return pathError(err, req.Path)
	}
	defer d.close()
	if err := s.receive(r, d, root, req.Size); err != nil {
		return pathError(err, req.Path)
	}
	lock := &s.names[crc32.ChecksumIEEE([]byte(d.base))%uint32(len(s.names))]
	lock.Lock() // before there is room, which files of other names need
	defer lock.Unlock()
	var info wire.FileInfo
	err = s.fs.Do(func() (err error) {
		info, err = d.commit(root.shown(rel))
		return err
	})
	if err != nil {
		return pathError(err, req.Path)
	}
	return r.Answer(info)
}

// receive writes the host's data to the draft, up to the host's end mark.
func (s *Service) receive(r Request, d *draft, root *root, size int64) error {
	most := int64(intakeFrames * wire.MaxData)
	if size >= 0 {
		most = min(most, size)
	}
	buf := make([]byte, 0, most) // data to write
	flush := func() error {
		return s.fs.Do(func() error {
			_, err := d.f.Write(buf)
			buf = buf[:0]
			return err
		})
	}
	var got int64
	var held []func() // releases for all reserved parts
	defer func() {
		for _, release := range held {
			release()
		}
	}()
	for {
		f, err := wire.ReadFrame(r, buf[len(buf):]) // a larger frame exceeds the file's maximum
		if err != nil {
			return wire.Errorf(wire.CodeInvalid, "the contents ended early") // the host has probably disconnected
		}
		if f.Kind == wire.KindEOF && f.Channel == wire.ChanFile {
			break
		}
		if f.Kind != wire.KindData || f.Channel != wire.ChanFile {
			return wire.Errorf(wire.CodeInvalid, "frame kind %d in the contents of a file", f.Kind)
		}
		got += int64(len(f.Body))
		if size >= 0 && got > size {
			return wire.Errorf(wire.CodeInvalid, "more than the %d bytes that were announced", size)
		}
		if size < 0 {
			release, err := root.reserve(int64(len(f.Body)), 0)
			if err != nil {
				return err
			}
			held = append(held, release)
		}
		if buf = buf[:len(buf)+len(f.Body)]; cap(buf)-len(buf) < wire.MaxData {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if size >= 0 && got != size {
		return wire.Errorf(wire.CodeInvalid, "received %d bytes, expected %d", got, size)
	}
	return flush()
}

// intakeFrames is the number of frames of a file written in one step. A slow write makes the process switch threads,
// regardless of the size.
const intakeFrames = 4

// draft is an incomplete file. It gets the final name atomically, or leaves no file behind.
type draft struct {
	dir       *os.File
	base      string
	f         *os.File
	temp      string // name in dir; empty for an unnamed file
	overwrite bool
	was       []byte // required checksum of the existing file; empty: any
	mode      uint32
	exact     bool // the umask does not apply to mode
}

// draft creates the parent directories and opens a temporary file. If the file exists, the guest agent's user must have
// write permission. The new file gets the existing file's mode, unless the request sets a mode.
func (r *root) draft(rel string, req *wire.FilePutRequest) (*draft, error) {
	dir, base, err := r.parent(rel)
	if errors.Is(err, unix.ENOENT) && len(req.Was) == 0 {
		if err = r.makeDirs(path.Dir(rel), 0o755); err == nil {
			dir, base, err = r.parent(rel)
		}
	}
	if err != nil {
		return nil, err
	}
	d := &draft{dir: dir, base: base, overwrite: req.Overwrite || len(req.Was) > 0, was: req.Was,
		mode: cmp.Or(req.Mode, 0o644), exact: req.Mode != 0}
	if err := d.open(); err != nil {
		_ = dir.Close() // only opened
		return nil, err
	}
	return d, nil
}

func (d *draft) open() error {
	fd := int(d.dir.Fd())
	var st unix.Stat_t
	if err := unix.Fstatat(fd, d.base, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		switch kind := st.Mode & unix.S_IFMT; {
		case kind == unix.S_IFDIR:
			return notRegular(d.base, true)
		case kind != unix.S_IFREG && kind != unix.S_IFLNK:
			return notRegular(d.base, false)
		case !d.overwrite:
			return unix.EEXIST
		case kind == unix.S_IFREG:
			if err := unix.Faccessat(fd, d.base, unix.W_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
			if !d.exact {
				d.mode, d.exact = st.Mode&0o777, true
			}
		}
	} else if len(d.base) > 255 {
		return unix.ENAMETOOLONG
	}
	// An unnamed file leaves nothing behind if the guest agent is killed.
	f, err := unix.Openat(fd, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, d.mode)
	if err != nil {
		d.temp = tempName()
		f, err = unix.Openat(fd, d.temp, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_WRONLY|unix.O_CLOEXEC, d.mode)
	}
	if err != nil {
		d.temp = ""
		return err
	}
	d.f = os.NewFile(uintptr(f), d.base)
	return nil
}

func tempName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented to never fail
	return fmt.Sprintf(".workcell-%x.tmp", b)
}

// commit gives the file the final name and describes the file. It replaces an existing link and does not follow it.
func (d *draft) commit(shown string) (wire.FileInfo, error) {
	fd := int(d.f.Fd())
	if d.exact {
		if err := unix.Fchmod(fd, d.mode); err != nil {
			return wire.FileInfo{}, err
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return wire.FileInfo{}, err
	}
	if err := d.name(fd); err != nil {
		return wire.FileInfo{}, err
	}
	return fileInfo(shown, &st), nil
}

// name links the file to the final name.
func (d *draft) name(fd int) error {
	dir := int(d.dir.Fd())
	if d.temp == "" {
		if len(d.was) == 0 {
			err := linkFile(fd, dir, d.base)
			if err == nil || !errors.Is(err, unix.EEXIST) || !d.overwrite {
				return err
			}
		}
		d.temp = tempName()
		if err := linkFile(fd, dir, d.temp); err != nil {
			d.temp = ""
			return err
		}
	}
	if len(d.was) > 0 {
		return d.swap(dir)
	}
	if !d.overwrite {
		return d.moved(rename(dir, d.temp, dir, d.base, unix.RENAME_NOREPLACE))
	}
	// Exchanging the files and removing the old file takes 25 µs on ext4. Renaming takes 1.2 ms, because ext4 then
	// allocates the new file's blocks immediately.
	err := rename(dir, d.temp, dir, d.base, unix.RENAME_EXCHANGE)
	if err != nil {
		return d.moved(unix.Renameat(dir, d.temp, dir, d.base))
	}
	if err = unix.Unlinkat(dir, d.temp, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		// A directory replaced the old file in the meantime: restore the directory's name.
		return errors.Join(err, rename(dir, d.temp, dir, d.base, unix.RENAME_EXCHANGE))
	}
	return d.moved(nil)
}

// errChanged is the error for an existing file without the expected content.
var errChanged error = wire.Errorf(wire.CodeChanged, "the file was changed by another process")

// swap replaces a file if it still has the content read by the host. If another process writes to the file between the
// check and the exchange, the change is visible afterwards, and swap undoes the exchange.
func (d *draft) swap(dir int) error {
	if !holds(dir, d.base, d.was) {
		return errChanged
	}
	if err := rename(dir, d.temp, dir, d.base, unix.RENAME_EXCHANGE); errors.Is(err, unix.EINVAL) {
		return d.moved(unix.Renameat(dir, d.temp, dir, d.base)) // without exchange, changes since the check are lost
	} else if err != nil {
		return err
	}
	if holds(dir, d.temp, d.was) {
		err := unix.Unlinkat(dir, d.temp, 0)
		if errors.Is(err, unix.ENOENT) {
			err = nil // a command removed it
		}
		return d.moved(err)
	}
	err := rename(dir, d.temp, dir, d.base, unix.RENAME_EXCHANGE)
	if err == nil && !d.is(dir, d.temp) { // a newer file of a command replaced this file
		err = rename(dir, d.temp, dir, d.base, unix.RENAME_EXCHANGE)
	}
	return cmp.Or(err, errChanged)
}

// is reports whether a name in a directory refers to the file.
func (d *draft) is(dir int, name string) bool {
	var there, own unix.Stat_t
	return unix.Fstatat(dir, name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		unix.Fstat(int(d.f.Fd()), &own) == nil && disk.IDOf(&there) == disk.IDOf(&own)
}

// holds reports whether a name in a directory is a regular file with this checksum.
func holds(dir int, name string, sum []byte) bool {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	now, err := checksum(f, st.Size)
	return err == nil && bytes.Equal(now, sum)
}

// moved records the removal of the temporary name.
func (d *draft) moved(err error) error {
	if err == nil {
		d.temp = ""
	}
	return err
}

// linkFile gives an open, unnamed file a name. Using /proc needs no privilege.
func linkFile(fd, dir int, name string) error {
	return unix.Linkat(unix.AT_FDCWD, proc.FDPath(fd), dir, name, unix.AT_SYMLINK_FOLLOW)
}

// rename is renameat2, or renameat if no flags are set.
func rename(fromDir int, from string, toDir int, to string, flags uint) error {
	if flags == 0 {
		return unix.Renameat(fromDir, from, toDir, to)
	}
	err := unix.Renameat2(fromDir, from, toDir, to, flags)
	if errors.Is(err, unix.EINVAL) && flags == unix.RENAME_NOREPLACE {
		return renameNew(fromDir, from, toDir, to)
	}
	return err
}

// renameNew implements renameat2 with RENAME_NOREPLACE for file systems without this flag, for example gVisor's file
// system for host files. A directory cannot have two names, so renameNew may replace an empty directory created at the
// same moment.
func renameNew(fromDir int, from string, toDir int, to string) error {
	err := unix.Linkat(fromDir, from, toDir, to, 0)
	if err == nil {
		return unix.Unlinkat(fromDir, from, 0)
	}
	if errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(toDir, to, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		return unix.EEXIST
	} else if !errors.Is(err, unix.ENOENT) {
		return err
	}
	return unix.Renameat(fromDir, from, toDir, to)
}

// close removes the temporary file, if any.
func (d *draft) close() {
	if d.temp != "" {
		_ = unix.Unlinkat(int(d.dir.Fd()), d.temp, 0) // a command may have removed it
	}
	_ = d.f.Close()   // every write was checked
	_ = d.dir.Close() // only opened
}
