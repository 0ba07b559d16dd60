package tools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Limits of the file tools.
const (
	defaultReadBytes = 256 << 10
	maxTransfer      = 64 << 20 // of one file per call, in both directions
)

// fsWrite creates a file, or replaces it with overwrite.
func (b *binding) fsWrite(ctx context.Context, in fsWriteInput) (out fsWriteOutput, err error) {
	data, given, err := eitherForm("contents", in.Contents, "contents_b64", in.ContentsB64)
	switch {
	case err != nil:
		return out, err
	case !given:
		return out, toolspec.Failf(toolspec.CodeInvalid, "contents or contents_b64 is required").
			WithRemediation("Pass the text as contents; an empty file is contents: \"\".")
	case len(data) > maxTransfer:
		return out, toolspec.Failf(toolspec.CodeTooLarge, "the contents have %d bytes, the limit of one call is %d",
			len(data), maxTransfer)
	}
	mode, err := fileMode(in.Mode)
	if err != nil {
		return out, err
	}
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	info, err := s.WriteFile(ctx, in.Path, bytes.NewReader(data), sandbox.WriteFileOptions{
		Mode: mode, Overwrite: in.Overwrite, Size: int64(len(data)),
	})
	if errors.Is(err, backend.ErrExists) && !in.Overwrite {
		return out, toolspec.Failf(toolspec.CodeExists, "%s already exists", sanitize.Clip(in.Path)).
			WithRemediation("Pass overwrite: true to replace it, or write to another path.")
	}
	if err != nil {
		return out, err
	}
	return fsWriteOutput{done: done{OK: true}, Path: absolute(s, info.Path), SizeBytes: info.Size}, nil
}

// fileMode parses octal permissions. If text is empty, it returns zero, and the sandbox uses the default.
func fileMode(text string) (fs.FileMode, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o777 || n == 0 {
		return 0, toolspec.Failf(toolspec.CodeInvalid,
			"mode %q must be permissions in octal between 0001 and 0777, for example 0755", sanitize.Clip(text))
	}
	return fs.FileMode(n), nil
}

// absolute returns the absolute path in the sandbox for a path of the file tools.
func absolute(s *session.Session, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(cmp.Or(s.Info().Workdir, backend.Workdir), name)
}

// fsList lists a directory, by default the work directory.
func fsList(ctx context.Context, s *session.Session, in fsListInput) (out fsListOutput, err error) {
	list, err := s.ListFiles(ctx, cmp.Or(in.Path, "."),
		sandbox.ListFilesOptions{Recursive: in.Recursive, Limit: int(in.Limit)})
	if err != nil {
		return out, err
	}
	out = fsListOutput{Entries: make([]fsEntry, len(list.Entries)), Truncated: list.Truncated, Total: list.Total}
	for i, e := range list.Entries {
		out.Entries[i] = fsEntry{
			Path: e.Path, PathB64: base64.StdEncoding.EncodeToString(e.RawPath), Type: string(e.Type), Size: e.Size,
			Mode: fmt.Sprintf("%04o", octal(e.Mode)), MtimeUnix: e.ModTime.Unix(),
		}
	}
	return out, nil
}

// octal returns m as a mode for chmod.
func octal(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for bit, mode := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&mode != 0 {
			bits |= bit
		}
	}
	return bits
}

// fsDelete removes a file, or a whole directory with recursive. It returns the number of removed entries.
func fsDelete(ctx context.Context, s *session.Session, in fsDeleteInput) (fsDeleteOutput, error) {
	deleted, err := s.RemoveFile(ctx, in.Path, in.Recursive)
	return fsDeleteOutput{done: done{OK: true}, Deleted: deleted}, err
}

// snapshot saves the files of the sandbox.
func snapshot(ctx context.Context, s *session.Session, in snapshotInput) (out snapshotOutput, err error) {
	if rules.IsRunSnapshot(in.Name) {
		return out, fmt.Errorf("%w: names like %.80q are reserved for snapshots of runs; choose another name",
			backend.ErrInvalid, in.Name)
	}
	if _, err := s.Snapshot(ctx, in.Name); err != nil {
		return out, err
	}
	return out.list(ctx, s)
}

// rollback restores the files of the sandbox from a snapshot.
func rollback(ctx context.Context, s *session.Session, in rollbackInput) (out snapshotOutput, err error) {
	if err := s.Rollback(ctx, in.Name); err != nil {
		return out, err
	}
	out.Note = fmt.Sprintf("/workspace is restored from %s, and no command is running.", in.Name)
	return out.list(ctx, s)
}

// list adds the names of the existing snapshots to the output.
func (o snapshotOutput) list(ctx context.Context, s *session.Session) (snapshotOutput, error) {
	list, _, err := s.Snapshots(ctx)
	o.OK, o.Snapshots = true, make([]string, 0, len(list))
	for _, snap := range list {
		o.Snapshots = append(o.Snapshots, snap.Name)
	}
	return o, err
}
