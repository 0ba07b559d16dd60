// Command orders is an MCP server on standard input and output. It provides the tools of a small shop for
// examples/host-tools.yaml:
//
//	workcell tools ls --host-tools examples/host-tools.yaml
//	workcell agent run examples/agents/order-desk.prompt --host-tools examples/host-tools.yaml 'What do the orders 1 to 20 come to?'
package main

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// lookupInput selects an order.
type lookupInput struct {
	ID string `json:"id" jsonschema:"number of the order, 1 to 60"`
}

// order is an order of the shop.
type order struct {
	ID       string  `json:"id"`
	Customer string  `json:"customer"`
	Amount   float64 `json:"amount" jsonschema:"in euros"`
	Refunded float64 `json:"refunded" jsonschema:"refunded amount"`
}

// refundInput is the input of a refund.
type refundInput struct {
	ID     string  `json:"id" jsonschema:"number of the order"`
	Amount float64 `json:"amount" jsonschema:"in euros"`
}

// shop stores the refunds in memory until the program ends.
type shop struct {
	mu       sync.Mutex // guards refunded
	refunded map[string]float64
}

func main() {
	s := &shop{refunded: map[string]float64{}}
	server := mcp.NewServer(&mcp.Implementation{Name: "orders", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "lookup", Description: "Finds an order by its number.", Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true}}, s.lookup)
	mcp.AddTool(server, &mcp.Tool{Name: "refund", Description: "Pays back a part of an order, or all of it."}, s.refund)
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

func (s *shop) lookup(_ context.Context, _ *mcp.CallToolRequest, in lookupInput) (*mcp.CallToolResult, order, error) {
	o, err := s.order(in.ID)
	return nil, o, err
}

func (s *shop) refund(_ context.Context, _ *mcp.CallToolRequest, in refundInput) (*mcp.CallToolResult, order, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := find(in.ID)
	if err != nil {
		return nil, order{}, err
	}
	if left := o.Amount - s.refunded[o.ID]; in.Amount <= 0 || in.Amount > left {
		return nil, order{}, fmt.Errorf("order %s has only %.2f left to refund", o.ID, left)
	}
	s.refunded[o.ID] += in.Amount
	o.Refunded = s.refunded[o.ID]
	return nil, o, nil
}

func (s *shop) order(id string) (order, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := find(id)
	o.Refunded = s.refunded[o.ID]
	return o, err
}

// find returns the original order. Its ID is the same for "5" and "05".
func find(id string) (order, error) {
	n, err := strconv.Atoi(id)
	if err != nil || n < 1 || n > 60 {
		return order{}, fmt.Errorf("order %q not found", id)
	}
	customers := []string{"Ada", "Grace", "Edsger", "Barbara"}
	return order{ID: strconv.Itoa(n), Customer: customers[n%len(customers)], Amount: float64(n*7%50) + 0.5}, nil
}
