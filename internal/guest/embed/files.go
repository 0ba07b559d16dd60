package embed

import (
	"fmt"
	"io/fs"
	"path"

	"github.com/workcell-dev/workcell/internal/guest/lib"
)

// Dir is the directory of the guest agent and the files with it in a sandbox.
const Dir = "/.workcell"

// File is a file below [Dir].
type File struct {
	Path string      // relative path with slashes, for example "bin/tools"
	Mode fs.FileMode // mode of the file; fs.ModeSymlink for a link
	Data []byte      // content, or the target of a link
}

// Files returns the files in [Dir] with this guest agent binary. The binary is the last file, so a directory with the
// binary is complete.
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
