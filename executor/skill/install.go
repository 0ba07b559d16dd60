package skill

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"path"
	"regexp"

	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
)

// Bounds of the skills that are installed together.
const (
	MaxFiles = 2000
	MaxBytes = 64 << 20

	writersAtOnce = 8
	dirMode       = 0o755
)

// Client is whose skills they become.
type Client string

// The clients.
const (
	Claude Client = "claude" // ~/.claude/skills
	Agents Client = "agents" // ~/.agents/skills, which all others read
)

// ClientOf returns the client of an executor's driver.
func ClientOf(driver string) Client {
	if driver == string(Claude) {
		return Claude
	}
	return Agents
}

// Dir returns where a client looks for skills, below its home.
func (c Client) Dir() string { return "." + string(c) + "/skills" }

// file is a file to be written.
type file struct {
	to   string
	mode fs.FileMode
	data []byte
}

// Install copies skills that Load returned into a sandbox, to where the client with this home looks for them. Modes are kept. A link
// or anything else that is neither file nor directory is ErrInvalid, as are two skills with one name; nothing is copied then.
func Install(ctx context.Context, s *session.Session, skills []Skill, home string, c Client) error {
	dirs, files, err := plan(skills, path.Join(home, c.Dir()))
	if err != nil {
		return err
	}
	for _, dir := range dirs { // empty ones, too, and before the files
		if _, err := s.MakeDir(ctx, dir, dirMode); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writersAtOnce)
	for _, f := range files {
		g.Go(func() error {
			_, err := s.WriteFile(ctx, f.to, bytes.NewReader(f.data), session.WriteFileOptions{
				Mode: f.mode, Overwrite: true, Size: int64(len(f.data)),
			})
			return err
		})
	}
	return g.Wait()
}

// installable names a directory in the sandbox; Load takes more.
var installable = regexp.MustCompile(`^[\p{L}\p{N}_][\p{L}\p{N}._ -]*$`)

// plan lists the directories of all skills and reads their files.
func plan(skills []Skill, into string) (dirs []string, files []file, err error) {
	seen := map[string]bool{}
	var total int64
	for _, s := range skills {
		name := s.Name
		switch {
		case s.files == nil:
			return nil, nil, fmt.Errorf("skill %q has no files; read it with Load: %w", sanitize.Clip(name), ErrInvalid)
		case !installable.MatchString(name) || len(name) > 255:
			return nil, nil, fmt.Errorf("skill %q: the name is not a valid directory name: %w", sanitize.Clip(name), ErrInvalid)
		case seen[name]:
			return nil, nil, fmt.Errorf("duplicate skill %q: %w", name, ErrInvalid)
		}
		seen[name] = true
		err := fs.WalkDir(s.files, ".", func(at string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			to := path.Join(into, name, at)
			if d.IsDir() {
				dirs = append(dirs, to)
				return bounded(len(dirs)+len(files), total)
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if !info.Mode().IsRegular() {
				return fmt.Errorf("%s is neither a file nor a directory: %w", at, ErrInvalid)
			}
			total += info.Size()
			if err := bounded(len(dirs)+len(files)+1, total); err != nil {
				return err
			}
			data, err := fs.ReadFile(s.files, at)
			files = append(files, file{to, info.Mode().Perm() | 0o400, data})
			return err
		})
		if err != nil {
			return nil, nil, fmt.Errorf("skill %q: %w", sanitize.Clip(name), err)
		}
	}
	return dirs, files, nil
}

// bounded refuses more than all skills may have together.
func bounded(entries int, total int64) error {
	if entries > MaxFiles || total > MaxBytes {
		return fmt.Errorf("the skills have more than %d files or %d MiB: %w", MaxFiles, MaxBytes>>20, ErrInvalid)
	}
	return nil
}
