package skill_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/executor/skill"
)

func ExampleParse() {
	s, err := skill.Parse([]byte("---\nname: release\ndescription: Prepare a release.\n---\nRun the tests first.\n"))
	fmt.Println(s.Name, err)
	fmt.Println(s.Description)
	// Output:
	// release <nil>
	// Prepare a release.
}
