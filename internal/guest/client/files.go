package client

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// GetFile copies a part of a regular file to w and describes the file. FileInfo.Size is the size of the whole file at
// the time when it was opened.
func (c *Conn) GetFile(ctx context.Context, req wire.FileGetRequest, w io.Writer) (wire.FileInfo, error) {
	var info wire.FileInfo
	k, err := c.open(ctx, wire.OpFileGet, &req)
	if err != nil {
		return info, err
	}
	defer k.end()
	if err := k.answer(&info); err != nil {
		return info, err
	}
	if err := checkInfo(&info); err != nil {
		return info, err
	}
	left := req.Length
	if left < 0 {
		left = max(0, info.Size-req.Offset)
	}
	var buf []byte
	for {
		f, err := k.read(buf)
		if err != nil {
			return info, err
		}
		if f.Kind == wire.KindEOF && f.Channel == wire.ChanFile {
			return info, nil
		}
		if f.Kind != wire.KindData || f.Channel != wire.ChanFile || int64(len(f.Body)) > left {
			return info, protocolErrorf("frame kind %d, %d bytes, where %d bytes of a file were due", f.Kind, len(f.Body), left)
		}
		left -= int64(len(f.Body))
		if _, err := w.Write(f.Body); err != nil {
			return info, err
		}
		if cap(f.Body) > cap(buf) {
			buf = f.Body[:0]
		}
	}
}

// PutFile writes a whole file from r atomically. After a failure, the old file is unchanged, or the file does not
// exist. If req.Size is not negative, PutFile reads exactly this number of bytes, and returns io.ErrUnexpectedEOF if r
// has fewer. PutFile may return while a Read of r is in progress. If req.Was is set, the file must exist and have this
// checksum; otherwise the error has the code wire.CodeChanged.
func (c *Conn) PutFile(ctx context.Context, req wire.FilePutRequest, r io.Reader) (wire.FileInfo, error) {
	p := &putter{r: r, left: req.Size, sized: req.Size >= 0}
	k, err := c.open(ctx, wire.OpFilePut, &req, p.next)
	if err != nil {
		return wire.FileInfo{}, err
	}
	defer k.end()
	var info wire.FileInfo
	if p.ended {
		err = k.answer(&info)
	} else {
		err = p.stream(k, &info)
	}
	if err != nil {
		return wire.FileInfo{}, err
	}
	return info, checkInfo(&info)
}

// putter sends the contents of a file.
type putter struct {
	r     io.Reader
	left  int64 // remaining bytes of a file with a known size
	sized bool
	ended bool // the EOF frame was created

	failed bool // reading r failed, which the guest agent reports as an early end
}

// next appends the next data frame, and the end after the last frame. It reads directly into the write buffer.
func (p *putter) next(dst []byte) ([]byte, error) {
	size := int64(wire.MaxData)
	if p.sized {
		size = min(p.left, size)
	}
	start := len(dst)
	body := start + wire.FramePrefixSize
	dst = slices.Grow(dst, wire.FramePrefixSize+int(size))
	n, err := io.ReadFull(p.r, dst[body:body+int(size)])
	p.left -= int64(n)
	short := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && (!short || p.sized) {
		if short {
			err = io.ErrUnexpectedEOF
		}
		return dst, err
	}
	if n > 0 {
		dst = dst[:body+n]
		wire.PutDataPrefix(dst[start:], wire.ChanFile, n)
	}
	if short || p.sized && p.left == 0 {
		p.ended = true
		return wire.AppendEOF(dst, wire.ChanFile), nil
	}
	return dst, nil
}

// stream sends the rest of the file. The guest agent may send an error early.
func (p *putter) stream(k *call, info *wire.FileInfo) error {
	sent := make(chan error, 1)
	go func() { sent <- p.rest(k) }()
	answered := make(chan error, 1)
	go func() { answered <- k.answer(info) }()
	select {
	case err := <-sent:
		if err != nil {
			k.abort() // the guest agent drops the received part
			if aerr := <-answered; !p.failed && errors.As(aerr, new(*wire.Error)) {
				return aerr
			}
			return err
		}
		return <-answered
	case err := <-answered:
		if err != nil {
			k.abort() // unblocks the sender
			return err
		}
		select { // the end was sent before this response, so the sender is done, unless the guest lies
		case err := <-sent:
			return err
		case <-k.ctx.Done():
			k.abort()
			return k.ctx.Err()
		}
	}
}

// batch is the number of frames in one write. Each write wakes up the multiplexer's goroutine in this process and the
// file's goroutine in the guest agent.
const batch = 4

func (p *putter) rest(k *call) error {
	out := make([]byte, 0, batch*(wire.FramePrefixSize+wire.MaxData)+wire.FramePrefixSize)
	for !p.ended {
		out = out[:0]
		for n := 0; n < batch && !p.ended; n++ {
			var err error
			if out, err = p.next(out); err != nil {
				p.failed = true
				return err
			}
		}
		if err := k.write(out); err != nil {
			return err
		}
	}
	return nil
}

// List lists a directory.
func (c *Conn) List(ctx context.Context, req wire.ListRequest) (wire.ListResult, error) {
	return ask(ctx, c, wire.OpList, &req, func(res *wire.ListResult) error { return checkList(&req, res) })
}

// Stat describes a directory entry. It does not follow symbolic links.
func (c *Conn) Stat(ctx context.Context, req wire.PathRequest) (wire.FileInfo, error) {
	return ask(ctx, c, wire.OpStat, &req, checkInfo)
}

// Mkdir creates a directory and the parents, and describes the directory.
func (c *Conn) Mkdir(ctx context.Context, req wire.PathRequest) (wire.FileInfo, error) {
	return ask(ctx, c, wire.OpMkdir, &req, checkInfo)
}

// Remove deletes a directory entry. If requested, it also deletes all entries below it.
func (c *Conn) Remove(ctx context.Context, req wire.PathRequest) (wire.RemoveResult, error) {
	return ask(ctx, c, wire.OpRemove, &req, checkRemoved)
}

// Rename moves a directory entry.
func (c *Conn) Rename(ctx context.Context, req wire.RenameRequest) error {
	return c.roundTrip(ctx, wire.OpRename, &req, new(wire.Empty))
}

// Digest returns the checksums of files and the targets of links, in the order of the paths.
func (c *Conn) Digest(ctx context.Context, req wire.DigestRequest) (wire.DigestResult, error) {
	return ask(ctx, c, wire.OpDigest, &req, func(res *wire.DigestResult) error { return checkDigests(&req, res) })
}
