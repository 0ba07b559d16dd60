// Moduleproxy writes the files of a Go module proxy for one version of a source tree. To use them, set
// GOPROXY=file://DIR. The zip file follows the rules for published modules, so Moduleproxy refuses an unpublishable
// tree.
//
// usage: moduleproxy -version v1.2.3 TREE DIR
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	version := flag.String("version", "", "version to serve")
	flag.Parse()
	if flag.NArg() != 2 || *version == "" {
		fmt.Fprintln(os.Stderr, "usage: moduleproxy -version v1.2.3 TREE DIR")
		os.Exit(2)
	}
	if err := serve(flag.Arg(0), flag.Arg(1), *version); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// serve writes the files for one version: list, info, mod, and zip.
func serve(tree, dir, version string) (err error) {
	raw, err := os.ReadFile(filepath.Join(tree, "go.mod"))
	if err != nil {
		return err
	}
	mod, err := modfile.Parse("go.mod", raw, nil)
	if err != nil {
		return err
	}
	if len(mod.Replace) > 0 || len(mod.Exclude) > 0 {
		return errors.New("go.mod replaces or excludes modules: `go install MODULE@VERSION` refuses that")
	}
	path, err := module.EscapePath(mod.Module.Mod.Path)
	if err != nil {
		return err
	}
	at := filepath.Join(dir, filepath.FromSlash(path), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": time.Now().UTC()})
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"list": []byte(version + "\n"), version + ".info": info, version + ".mod": raw} {
		if err := os.WriteFile(filepath.Join(at, name), data, 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return zip.CreateFromDir(f, module.Version{Path: mod.Module.Mod.Path, Version: version}, tree)
}
