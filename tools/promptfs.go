package tools

import (
	"bytes"
	"errors"
	"io/fs"
	"path"
	"slices"

	"github.com/workcell-dev/workcell/frontmatter"
)

// PromptFS returns a view of fsys in which `sandbox:` is rewritten for Genkit. Use it to let Genkit load a directory:
//
//	genkit.Init(ctx, genkit.WithPlugins(plugin), genkit.WithPromptFS(tools.PromptFS(os.DirFS("."))))
//
// Without PromptFS, Genkit ignores `sandbox:`. Therefore, genkit.Init with a Plugin panics with the file's name if
// Genkit loaded a prompt with `sandbox:` from a directory. It cannot check prompts from file systems other than a
// PromptFS, and logs their names. It also cannot check prompts loaded later, for example by genkit.LoadPrompt. Use
// LoadPrompt or LoadAgents for them. Do not pass ai.WithUse to Execute (see LoadPrompt).
//
// Reading a malformed prompt file fails. Genkit logs this error and continues without the prompt. Use LoadAgents to get
// the error. Partials and other files are unchanged. Reading a partial that includes itself also fails, because
// rendering it would crash the program.
func PromptFS(fsys fs.FS) fs.FS { return promptFS{fsys} }

type promptFS struct{ fsys fs.FS }

// rewritten returns the rewritten content of a prompt file. For other files, ok is false.
func (p promptFS) rewritten(name string) (data []byte, ok bool, err error) {
	if path.Ext(name) != promptSuffix {
		return nil, false, nil
	}
	info, err := fs.Stat(p.fsys, name)
	if err != nil || info.IsDir() {
		return nil, false, err
	}
	if isPartial(name) {
		found, err := findPartials(p.fsys, "", true)
		if err == nil {
			err = found.cycleFrom(partialName(name))
		}
		return nil, false, err
	}
	src, err := frontmatter.ReadFS(p.fsys, name, name)
	if err != nil {
		return nil, false, err
	}
	doc, err := CheckPrompt(name, src)
	if err != nil {
		return nil, false, err
	}
	data, err = doc.Source()
	if err == nil && doc.Sandbox == nil {
		text := bytes.TrimRight(data, " \t\r\n")
		data = slices.Concat(text, []byte(checked), data[len(text):])
	}
	return data, err == nil, err
}

// Open opens a file. Prompt files are rewritten, and other files are unchanged.
func (p promptFS) Open(name string) (fs.File, error) {
	data, ok, err := p.rewritten(name)
	if err != nil {
		if !errors.As(err, new(*fs.PathError)) {
			err = &fs.PathError{Op: "open", Path: name, Err: err}
		}
		return nil, err
	}
	f, err := p.fsys.Open(name)
	if !ok || err != nil {
		return f, err
	}
	return &promptFile{f, bytes.NewReader(data)}, nil
}

// promptFile is an open prompt file. Stat returns the size of the original content.
type promptFile struct {
	fs.File
	rewritten *bytes.Reader
}

func (f *promptFile) Read(p []byte) (int, error) { return f.rewritten.Read(p) }
