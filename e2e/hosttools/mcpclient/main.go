// Command mcpclient is an MCP client, of the Go SDK, that runs inside a sandbox. It prints what it found as JSON. The call
// that it cancels it cancels once there is a file "begun".
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/exec"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type found struct {
	Server    string
	Tools     []string
	Resources []string
	Index     string
	Total     float64
	Refused   string // why a tool that was not granted was not called
	Canceled  string
	After     float64 // an answer after a call was canceled
}

func main() {
	log.SetFlags(0)
	f, err := look(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(f); err != nil {
		log.Fatal(err)
	}
}

func look(ctx context.Context) (f found, err error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "mcpclient", Version: "1"}, nil)
	s, err := client.Connect(ctx, &mcp.CommandTransport{Command: exec.Command("/.workcell/workcell-guest", "mcp")}, nil)
	if err != nil {
		return f, err
	}
	defer s.Close()
	f.Server = s.InitializeResult().ServerInfo.Name
	for tool, err := range s.Tools(ctx, nil) {
		if err != nil {
			return f, err
		}
		f.Tools = append(f.Tools, tool.Name)
	}
	for resource, err := range s.Resources(ctx, nil) {
		if err != nil {
			return f, err
		}
		f.Resources = append(f.Resources, resource.URI)
	}
	index, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "tools://INDEX.md"})
	if err != nil {
		return f, err
	}
	f.Index = index.Contents[0].Text
	if f.Total, err = lookup(ctx, s); err != nil {
		return f, err
	}
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "orders_refund", Arguments: map[string]any{"id": "1"}})
	switch {
	case err != nil:
		f.Refused = err.Error()
	case res.IsError:
		f.Refused = res.Content[0].(*mcp.TextContent).Text
	}
	until, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for until.Err() == nil {
			if _, err := os.Stat("begun"); err == nil {
				cancel()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	if _, err := s.CallTool(until, &mcp.CallToolParams{Name: "orders_wait", Arguments: map[string]any{}}); err != nil {
		f.Canceled = err.Error()
	}
	f.After, err = lookup(ctx, s)
	return f, err
}

func lookup(ctx context.Context, s *mcp.ClientSession) (total float64, err error) {
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "orders_lookup", Arguments: map[string]any{"id": "1"}})
	if err != nil {
		return 0, err
	}
	data, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return 0, err
	}
	var order struct{ Total float64 }
	return order.Total, json.Unmarshal(data, &order)
}
