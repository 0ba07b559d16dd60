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

func ExampleErrors() {
	_, err := frontmatter.Parse("coder.prompt", []byte("---\nsandbox:\n  runtme: python\n  limits: {pids: many}\n---\n"))
	fmt.Println(err)
	// Output:
	// coder.prompt:3:3: unknown key "runtme" in sandbox; did you mean "runtime"?
	// coder.prompt:4:18: sandbox.limits.pids must be a whole number, it is text
}
