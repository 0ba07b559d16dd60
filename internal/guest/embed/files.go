package embed

import (
	"fmt"
	"io/fs"
	"path"

	"github.com/workcell-dev/workcell/internal/guest/lib"
)

// Dir is where a sandbox finds the guest and what belongs to it.
const Dir = "/.workcell"

// File is one file below [Dir].
type File struct {
	Path string      // relative, with slashes
	Mode fs.FileMode // of a file; fs.ModeSymlink for a link
	Data []byte      // of a link: its target
}

// Files returns what lies in [Dir] with this binary of the guest, which comes last: a directory that has it is whole.
func Files(guest []byte) ([]File, error) {
	files := []File{{"bin/tools", fs.ModeSymlink, []byte("../" + path.Base(Path))}}
	err := fs.WalkDir(lib.Files(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(lib.Files(), name)
		files = append(files, File{path.Join("lib", name), 0o444, data})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("embedded library: %w", err)
	}
	return append(files, File{path.Base(Path), Mode, guest}), nil
}
