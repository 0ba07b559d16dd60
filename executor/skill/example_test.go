package skill_test

import (
	"fmt"
	"testing/fstest"

	"github.com/workcell-dev/workcell/executor/skill"
)

func ExampleLoad() {
	const text = "---\nname: release\ndescription: Prepare a release.\n---\nRun the tests first.\n"
	s, _, err := skill.Load(fstest.MapFS{"release/SKILL.md": {Data: []byte(text)}}, "release")
	fmt.Println(s.Name, err)
	fmt.Println(s.Description)
	// Output:
	// release <nil>
	// Prepare a release.
}
