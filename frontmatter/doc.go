// Package frontmatter reads the sandbox settings of dotprompt files.
//
// A file requests a sandbox in its frontmatter, in a short or a full form:
//
//	---                               ---
//	model: googleai/gemini-2.5-flash  model: googleai/gemini-2.5-flash
//	sandbox: python                   sandbox:
//	---                                 mode: code
//	{{task}}                            runtime: python
//	                                    limits: {memory_mb: 1024}
//	                                  ---
//	                                  {{task}}
//
// Most users need [Parse], or package tools, which calls it. [Parse] reports all problems as [Errors], with file, line,
// and column. It is stricter than Genkit: misspelled keys, values with a wrong type, and unclosed frontmatter are
// errors and never mean "no sandbox". [Document.Source] returns the file in a form that Genkit understands, with
// `sandbox:` as an entry of `use:`.
//
// Parsing and validation ([Sandbox.Problems]) are separate, so a [Sandbox] from Go code is validated by the same rules.
//
// Input is untrusted. Files have a maximum size ([MaxFileBytes], [MaxFrontmatterBytes]). The depth of the YAML and the
// expansion of aliases are limited, and explicit tags are refused. Values are literal: ${NAME} is not expanded.
package frontmatter
