package frontmatter

import "github.com/workcell-dev/workcell/internal/yamlnode"

// read parses the YAML document of frontmatter that begins on a line of its file. Real frontmatter is far below the
// limits. Genkit's parser takes time with the square of the number of keys, and fails on some documents without an error.
func read(name, text string, line int) (decoder, *yamlnode.Node) {
	d, root := yamlnode.Format{
		Name: "the frontmatter", Single: "remove lines that begin with --- or ... from the frontmatter", FirstLine: line,
		MaxBytes: MaxFileBytes, MaxDepth: 64, MaxValues: 5_000, MergeKeys: true,
	}.Read(name, []byte(text))
	return newDecoder(d), root
}
