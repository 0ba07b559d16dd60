package mcpsource_test

import (
	"fmt"
	"log"

	"github.com/workcell-dev/workcell/gateway/hosttools/mcpsource"
)

// The host tools file lists MCP servers. Secrets come from variables and are never printed.
func ExampleParseConfig() {
	file := "servers:\n  github: {command: [github-mcp], env: {TOKEN: \"${TOKEN}\"}}\n"
	c, err := mcpsource.ParseConfig("host-tools.yaml", []byte(file), func(string) (string, bool) { return "s3cret", true })
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Servers[0].Name, c.Servers[0].Command, c.Servers[0].Env["TOKEN"])
	// Output: github [github-mcp] [redacted]
}
