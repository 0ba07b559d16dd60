package main

import (
	"context"
	"fmt"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// shop is an MCP server for scripts. It has one tool per argument, which returns the request.
func shop() {
	type order struct {
		ID     string  `json:"id"`
		Amount float64 `json:"amount,omitempty"`
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "shop", Version: "1"}, nil)
	for _, name := range os.Args[1:] {
		mcp.AddTool(s, &mcp.Tool{Name: name, Description: "Does " + name + " with an order."},
			func(_ context.Context, _ *mcp.CallToolRequest, in order) (*mcp.CallToolResult, order, error) {
				if in.ID == "0" {
					return nil, in, fmt.Errorf("there is no order %s", in.ID)
				}
				return nil, in, nil
			})
	}
	if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
