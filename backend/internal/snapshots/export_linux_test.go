package snapshots

import "context"

// MaxLinked is how many bytes the paths of files with several names may take.
const MaxLinked = maxLinked

// Mirror copies the directory src to dst, with ids shifted, after linked bytes of such paths. It calls made after
// every file.
func Mirror(ctx context.Context, src, dst string, shift int64, linked int, made func()) error {
	m := &mirror{ctx: ctx, shift: shift, linked: linked, made: func(file, file) error {
		made()
		return nil
	}}
	return m.between(src, dst, m.run)
}
