// Package frontmatter reads the part of a dotprompt file that concerns sandboxes.
//
// A file asks for a sandbox in its frontmatter, in the short form or in full:
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
// Most users want [Parse], or package tools, which calls it. [Parse] reports every problem at once as [Errors], each
// with file, line and column. It is strict where Genkit is lenient: a key that is misspelt, a value of the wrong type
// or frontmatter that is not closed is an error and never "no sandbox". [Document.Source] returns the file in the form
// Genkit understands, where `sandbox:` has become an entry of `use:`.
//
// Parsing (what the text says) and validation ([Sandbox.Problems]: whether that can be) are separate, so a [Sandbox]
// that was written in Go is held to the same rules.
//
// Input is untrusted. Files have a size limit ([MaxFileBytes], [MaxFrontmatterBytes]), YAML has limits on depth and on
// what aliases may expand to, and explicit tags are refused. Values are literal: nothing expands ${NAME}.
package frontmatter
