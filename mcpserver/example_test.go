package mcpserver_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/mcpserver"
)

// A policy refuses commands and limits the size of transferred files.
func ExampleParsePolicy() {
	file := "commands: {refuse: [{pattern: git push}]}\nlimits: {file_mb: 1}\n"
	policy, err := mcpserver.ParsePolicy("policy.yaml", []byte(file))
	fmt.Println(policy.Commands.Refuse[0].Pattern, policy.Limits.FileMB, err)
	// Output: git push 1 <nil>
}
