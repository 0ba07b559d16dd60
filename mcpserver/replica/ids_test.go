package replica

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// pipe is a connection that keeps what was sent, and has one message to read.
type pipe struct {
	sent []jsonrpc.Message
	read jsonrpc.Message
}

func (p *pipe) Read(context.Context) (jsonrpc.Message, error) { return p.read, nil }
func (p *pipe) Write(_ context.Context, msg jsonrpc.Message) error {
	p.sent = append(p.sent, msg)
	return nil
}
func (p *pipe) Close() error      { return nil }
func (p *pipe) SessionID() string { return "" }

var _ mcp.Connection = (*pipe)(nil)

// TestOwnIDs: the answer to one server's question is no other's, whatever number the question has, and a cancelled question has the
// id that the client knows.
func TestOwnIDs(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, b := &pipe{}, &pipe{}
	ca, cb := ownIDsConn{a, newOwnIDs(nil).prefix}, ownIDsConn{b, newOwnIDs(nil).prefix}
	one, err := jsonrpc.MakeID(1.0)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Write(ctx, &jsonrpc.Request{ID: one, Method: "elicitation/create"}); err != nil {
		t.Fatal(err)
	}
	if err := ca.Write(ctx, &jsonrpc.Request{Method: "notifications/cancelled", Params: []byte(`{"requestId":1,"reason":"x"}`)}); err != nil {
		t.Fatal(err)
	}
	asked, cancelled := a.sent[0].(*jsonrpc.Request), a.sent[1].(*jsonrpc.Request)
	if want := fmt.Sprintf(`{"reason":"x","requestId":"%v"}`, asked.ID.Raw()); string(cancelled.Params) != want {
		t.Errorf("cancelled %s, want %s", cancelled.Params, want)
	}
	for _, test := range []struct {
		id   any
		conn ownIDsConn
		pipe *pipe
		want any
	}{
		{asked.ID.Raw(), ca, a, int64(1)}, {asked.ID.Raw(), cb, b, int64(-1)}, {1.0, ca, a, int64(-1)}, {"1", ca, a, int64(-1)}, {ca.prefix + "x", ca, a, int64(-1)},
	} {
		id, err := jsonrpc.MakeID(test.id)
		if err != nil {
			t.Fatal(err)
		}
		test.pipe.read = &jsonrpc.Response{ID: id, Result: []byte(`{}`)}
		msg, err := test.conn.Read(ctx)
		if err != nil || msg.(*jsonrpc.Response).ID.Raw() != test.want {
			t.Errorf("%v: %v, %v, want %v", test.id, msg.(*jsonrpc.Response).ID.Raw(), err, test.want)
		}
	}
}

// TestIsID: what a client sends for the id of a session comes to the database only when it looks like one.
func TestIsID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		rand.Text(): true, "": false, "\xff": false, "'": false, "forged": false, rand.Text() + "\n": false, strings.Repeat("A", 65): false,
	} {
		if isID(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}
