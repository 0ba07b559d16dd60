package frontmatter_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/frontmatter"
)

func ExampleParse() {
	doc, err := frontmatter.Parse("coder.prompt", []byte(`---
model: googleai/gemini-2.5-flash
sandbox: node
---
{{task}}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	s := doc.Sandbox.WithDefaults()
	fmt.Println(doc.Meta.Model, s.Mode, s.Runtime, s.Image)
	// Output:
	// googleai/gemini-2.5-flash compute node node:20-slim
}
