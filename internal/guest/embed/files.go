package embed

import (
	"archive/tar"
	"fmt"
	"io"
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

// Tar writes files, and their parent directories, as an archive.
func Tar(w io.Writer, files ...File) error {
	tw, made := tar.NewWriter(w), map[string]bool{".": true}
	for _, f := range files {
		if err := writeFile(tw, f, made); err != nil {
			return err
		}
	}
	return tw.Close()
}

func writeFile(w *tar.Writer, f File, made map[string]bool) error {
	if err := writeDirs(w, path.Dir(f.Path), made); err != nil {
		return err
	}
	if f.Mode.Type() == fs.ModeSymlink {
		return w.WriteHeader(&tar.Header{Name: f.Path, Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: string(f.Data)})
	}
	mode, size := int64(f.Mode.Perm()), int64(len(f.Data))
	err := w.WriteHeader(&tar.Header{Name: f.Path, Typeflag: tar.TypeReg, Mode: mode, Size: size})
	if err == nil {
		_, err = w.Write(f.Data)
	}
	return err
}

// writeDirs writes a directory and its parents, except for directories in made.
func writeDirs(w *tar.Writer, dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	if err := writeDirs(w, path.Dir(dir), made); err != nil {
		return err
	}
	made[dir] = true
	return w.WriteHeader(&tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755})
}
