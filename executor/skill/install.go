package skill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"

	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
)

// Limits of all skills in one installation.
const (
	maxFiles = 2000
	maxBytes = 64 << 20

	writersAtOnce = 8
	dirMode       = 0o755
)

// Dir returns the skill directory for the CLI of an executor's driver, relative to the CLI's home directory.
func Dir(driver string) string {
	if driver == "claude" {
		return ".claude/skills"
	}
	return ".agents/skills"
}

// file is a file or a directory of a skill.
type file struct {
	name string // relative to the skill's directory
	mode fs.FileMode
	data []byte
}

// read reads the directory of a skill. It returns ErrInvalid for links and special files.
func read(fsys fs.FS) (files []file, err error) {
	var total int64
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f := file{name: name, mode: info.Mode()}
		if !d.IsDir() {
			total += info.Size()
		}
		if err := bounded(len(files)+1, total); err != nil || d.IsDir() {
			files = append(files, f)
			return err
		}
		if !f.mode.IsRegular() {
			return fmt.Errorf("%s is neither a file nor a directory: %w", name, ErrInvalid)
		}
		f.data, err = fs.ReadFile(fsys, name)
		files = append(files, f)
		return err
	})
	return files, err
}

// installable matches possible directory names in the sandbox. Load accepts more names.
var installable = regexp.MustCompile(`^[\p{L}\p{N}_][\p{L}\p{N}._ -]*$`)

// Install copies skills returned by Load into a directory of a sandbox. File modes are kept. If two skills have the
// same name, or the skills together have more than 2000 files or 64 MiB, Install copies nothing and returns an error
// wrapping ErrInvalid.
func Install(ctx context.Context, s *sandbox.Sandbox, skills []Skill, dir string) error {
	seen := map[string]bool{}
	entries, total := 0, int64(0)
	for _, one := range skills {
		switch name := one.Name; {
		case one.files == nil:
			return fmt.Errorf("skill %q has no files; read it with Load: %w", sanitize.Clip(name), ErrInvalid)
		case !installable.MatchString(name) || len(name) > 255:
			return fmt.Errorf("skill %q: the name is not a valid directory name: %w", sanitize.Clip(name), ErrInvalid)
		case seen[name]:
			return fmt.Errorf("duplicate skill %q: %w", name, ErrInvalid)
		}
		seen[one.Name] = true
		entries += len(one.files)
		for _, f := range one.files {
			total += int64(len(f.data))
		}
	}
	if err := bounded(entries, total); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writersAtOnce)
	for _, one := range skills {
		for _, f := range one.files {
			to := path.Join(dir, one.Name, f.name)
			if f.mode.IsDir() { // created before the files in it
				if _, err := s.MakeDir(ctx, to, dirMode); err != nil {
					return errors.Join(err, g.Wait())
				}
				continue
			}
			g.Go(func() error {
				_, err := s.WriteFile(gctx, to, bytes.NewReader(f.data), sandbox.WriteFileOptions{
					Mode: f.mode.Perm() | 0o400, Overwrite: true, Size: int64(len(f.data)),
				})
				return err
			})
		}
	}
	return g.Wait()
}

// bounded returns an error if the skills exceed their common limits.
func bounded(entries int, total int64) error {
	if entries > maxFiles || total > maxBytes {
		return fmt.Errorf("the skills have more than %d files or %d MiB: %w", maxFiles, maxBytes>>20, ErrInvalid)
	}
	return nil
}
