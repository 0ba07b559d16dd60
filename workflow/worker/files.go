package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres"
)

// Needed is the name of the file a worker needs to execute a run. Workers delete it when the run has ended.
const Needed = "needed"

// MaxFileBytes is the maximum size of a run's file. partBytes is the maximum size per statement.
const (
	MaxFileBytes = 64 << 20
	partBytes    = 1 << 20
)

// Put stores a file for a run and replaces an existing file with the same name. The run does not have to exist yet. Put
// is atomic. If the file is larger than MaxFileBytes, the error wraps backend.ErrTooLarge.
func (q *Queue) Put(ctx context.Context, runID, name string, r io.Reader) (err error) {
	unnamed := name + "~" + rand.Text()
	defer func() {
		if err != nil { // if this fails, Prune deletes the parts
			_ = q.exec(context.WithoutCancel(ctx), `DELETE FROM workcell.run_file WHERE run = $1 AND name = $2`, runID, unnamed)
		}
	}()
	if err := q.putParts(ctx, runID, unnamed, r); err != nil {
		return err
	}
	return q.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		var there bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workcell.run_file WHERE run = $1 AND name = $2)`, runID, unnamed).
			Scan(&there)
		if err != nil || !there { // the file already has the name
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM workcell.run_file WHERE run = $1 AND name = $2`, runID, name); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE workcell.run_file SET name = $3 WHERE run = $1 AND name = $2`, runID, unnamed, name)
		return err
	})
}

func (q *Queue) putParts(ctx context.Context, runID, name string, r io.Reader) error {
	buf := make([]byte, partBytes)
	for part := 0; ; part++ {
		if part == MaxFileBytes/partBytes {
			if n, _ := io.ReadFull(r, buf[:1]); n > 0 {
				return fmt.Errorf("%w: more than %d MiB", backend.ErrTooLarge, MaxFileBytes>>20)
			}
			return nil
		}
		n, err := io.ReadFull(r, buf)
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return err
		}
		if n > 0 || part == 0 {
			if err := q.exec(ctx, `INSERT INTO workcell.run_file VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`, runID, name,
				part, buf[:n]); err != nil {
				return err
			}
		}
		if end {
			return nil
		}
	}
}

// Get writes a file of a run to w. If the file does not exist, the error wraps backend.ErrNotFound. If the file is
// replaced during the read, Get returns an error. It detects this by the transaction that wrote each part, because a
// separate statement reads each part. If the file is larger than MaxFileBytes, the error wraps backend.ErrTooLarge.
func (q *Queue) Get(ctx context.Context, runID, name string, w io.Writer) error {
	began, size := "", 0
	for part := 0; ; part++ {
		var data []byte
		var written string
		err := q.db.Do(ctx, func(ctx context.Context, c postgres.Queryer, _ bool) error {
			return c.QueryRow(ctx, `SELECT (SELECT data FROM workcell.run_file
WHERE run = $1 AND name = $2 AND part = $3), xmin::text
FROM workcell.run_file WHERE run = $1 AND name = $2 AND part = 0`, runID, name, part).Scan(&data, &written)
		})
		if part == 0 {
			began = written
		}
		switch {
		case part > 0 && (errors.Is(err, pgx.ErrNoRows) || err == nil && written != began):
			return fmt.Errorf("file %s of run %s was replaced while it was read; try again", name, runID)
		case errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("file %s of run %s: %w", name, runID, backend.ErrNotFound)
		case err != nil || data == nil:
			return err
		}
		if size += len(data); size > MaxFileBytes {
			return fmt.Errorf("file %s of run %s: %w", name, runID, backend.ErrTooLarge)
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
}

// Drop deletes a file of a run, or all files if name is empty. A missing file is not an error.
func (q *Queue) Drop(ctx context.Context, runID, name string) error {
	return q.exec(ctx, `DELETE FROM workcell.run_file WHERE run = $1 AND $2 IN ('', name)`, runID, name)
}

// Prune deletes the files of unknown runs and the parts of interrupted uploads.
func (q *Queue) Prune(ctx context.Context) error {
	return q.exec(ctx, `DELETE FROM workcell.run_file f WHERE added < now() - interval '1 day'
AND (position('~' IN name) > 0 OR NOT EXISTS (SELECT FROM workcell.run WHERE id = f.run))`)
}
