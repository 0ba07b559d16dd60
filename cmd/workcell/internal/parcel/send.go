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

// made is the name of the results file in the queue.
const made = "made"

// ErrWorkspace means a workspace directory cannot be packed.
var ErrWorkspace = errors.New("cannot pack the workspace")

// Send packs the files of a run and stores them with the run in the queue. workspace is the directory to pack. It is
// empty if the run has no workspace or f.Base is set. If the files exceed the queue's size limit, Send returns
// backend.ErrTooLarge.
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
	defer packed.Close() // the file is removed with the directory
	if err := f.Write(packed); err != nil {
		return err
	}
	if _, err := packed.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return q.Put(ctx, runID, worker.Needed, packed)
}

// Fetch copies the files of a run into dir, a directory of kept.Needs. It copies the workspace to the place where the
// run's engine looks for it. It also copies results collected by an earlier, dead process.
func Fetch(ctx context.Context, q *worker.Queue, runID string, kept runfiles.Dir, dir string) (f Files, err error) {
	packed := filepath.Join(dir, "parcel.zip")
	get := func(w io.Writer) error { return q.Get(ctx, runID, worker.Needed, w) }
	if err := runfiles.WriteWhole(packed, get); err != nil {
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

// KeepMade stores the results of a run in the queue. If the results exceed the queue's size limit, it returns
// backend.ErrTooLarge.
func KeepMade(ctx context.Context, q *worker.Queue, runID string, kept runfiles.Dir) error {
	f, err := os.Open(kept.Made(runID))
	if err != nil {
		return err
	}
	defer f.Close() // opened for reading only
	return q.Put(ctx, runID, made, f)
}

// FetchMade copies the results of a run to the place of a locally executed run, as [runfiles.Dir.Fetched]. It returns
// backend.ErrNotFound if there are no results.
func FetchMade(ctx context.Context, q *worker.Queue, runID string, kept runfiles.Dir) error {
	if err := os.MkdirAll(kept.Of(runID), 0o700); err != nil {
		return err
	}
	err := runfiles.WriteWhole(kept.Made(runID), func(w io.Writer) error {
		if err := q.Get(ctx, runID, made, w); err != nil {
			return err
		}
		return kept.Fetched(runID) // before the results are visible
	})
	if errors.Is(err, backend.ErrNotFound) {
		_ = os.Remove(kept.Of(runID)) // fails if the directory contains other files
	}
	return err
}
