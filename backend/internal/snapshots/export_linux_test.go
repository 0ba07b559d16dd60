package snapshots

import "context"

// MaxLinked is maxLinked, in bytes.
const MaxLinked = maxLinked

// Mirror copies the directory src to dst and shifts the owners' IDs. linked is the number of bytes of hard link paths
// in use. Mirror calls made after every file.
func Mirror(ctx context.Context, src, dst string, shift int64, linked int, made func()) error {
	m := &mirror{ctx: ctx, shift: shift, linked: linked, made: func(file, file) error {
		made()
		return nil
	}}
	return m.between(src, dst, m.run)
}
