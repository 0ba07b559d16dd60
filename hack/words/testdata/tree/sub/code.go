// Package sub is joined over lines: the list of
// what is in it.
//
// A second paragraph, of what
package sub

//go:generate somebody

// the rest of another paragraph.
var (
	short  = "somebody"                        // a word is no prose
	long   = "a text for somebody"             /* of what the value is */
	ok     = "a text for anybody and everyone" // words:ok it is quoted
	wide   = `a raw text, with ` + `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx`
	narrow = "ééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé"
)
