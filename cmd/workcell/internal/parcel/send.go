package parcel

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/session/transfer"
	"github.com/workcell-dev/workcell/workflow/worker"
)

// made is the name of the file that a queue keeps of what a run made.
const made = "made"

// ErrWorkspace means that the directory of a workspace cannot be packed.
var ErrWorkspace = errors.New("cannot pack the workspace")

// Send packs the files of a run, with the workspace as it is in a directory, empty for none or for that of f.Base, and
// keeps them with the run. The error is backend.ErrTooLarge when they are larger than what a queue keeps.
func Send(ctx context.Context, q *worker.Queue, runID string, f Files, workspace transfer.Place) (err error) {
	dir, err := os.MkdirTemp("", "workcell-detach-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if workspace.Dir != "" {
		f.Base = filepath.Join(dir, "base.zip")
		base, err := transfer.NewSnapshot(ctx, workspace, f.Base)
		if err == nil {
			err = base.Take(ctx)
		}
		if err != nil {
			return errors.Join(ErrWorkspace, err)
		}
	}
	packed, err := os.Create(filepath.Join(dir, "parcel.zip"))
	if err != nil {
		return err
	}
	defer packed.Close() // it goes with its directory
	if err := f.Write(packed); err != nil {
		return err
	}
	if _, err := packed.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return q.Put(ctx, runID, worker.Needed, packed)
}

// Fetch brings the files of a run into a directory of kept.Needs, the workspace to where its engine looks for it, and
// the results that an earlier process collected before it died.
func Fetch(ctx context.Context, q *worker.Queue, runID string, kept runfiles.Dir, dir string) (f Files, err error) {
	packed := filepath.Join(dir, "parcel.zip")
	if err := fetch(ctx, q, runID, worker.Needed, packed); err != nil {
		return f, err
	}
	if f, err = Extract(packed, filepath.Join(dir, "files")); err != nil {
		return f, err
	}
	base := kept.Base(runID)
	if f.Base != "" {
		err = os.Rename(f.Base, base)
	} else if err = os.Remove(base); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return f, err
	}
	if err := FetchMade(ctx, q, runID, kept); !errors.Is(err, backend.ErrNotFound) {
		return f, err
	}
	return f, nil
}

// KeepMade keeps what a run made with the run. The error is backend.ErrTooLarge when that is larger than what a queue
// keeps.
func KeepMade(ctx context.Context, q *worker.Queue, runID string, kept runfiles.Dir) error {
	f, err := os.Open(kept.Made(runID))
	if err != nil {
		return err
	}
	defer f.Close() // only read from
	return q.Put(ctx, runID, made, f)
}

// FetchMade brings what a run made to where it would be if this machine had carried it out, as [runfiles.Dir.Fetched];
// backend.ErrNotFound when there is nothing.
func FetchMade(ctx context.Context, q *worker.Queue, runID string, kept runfiles.Dir) error {
	if err := kept.Fetched(runID); err != nil {
		return err
	}
	err := fetch(ctx, q, runID, made, kept.Made(runID))
	if errors.Is(err, backend.ErrNotFound) {
		_ = os.Remove(kept.Of(runID)) // fails when there is more
	}
	return err
}

// fetch brings a file of a run here.
func fetch(ctx context.Context, q *worker.Queue, runID, name, to string) error {
	return runfiles.WriteWhole(to, func(w io.Writer) error { return q.Get(ctx, runID, name, w) })
}
