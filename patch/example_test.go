package patch_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/patch"
)

// A patch contains the difference between two directory trees.
func Example() {
	before := patch.Tree{"greeting.txt": {Mode: 0o644, Content: []byte("hello\n")}}
	after := patch.Tree{"greeting.txt": {Mode: 0o644, Content: []byte("hello, world\n")}}
	p := patch.Compare(before, after)
	fmt.Println(p.Changes[0].Path, p.Stat().Insertions, p.Stat().Deletions)
	// Output: greeting.txt 1 1
}
