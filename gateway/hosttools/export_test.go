package hosttools

import (
	"bufio"
	"context"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/workcell-dev/workcell/sandbox"
)

// Declarations writes the declarations of tools with clean schemas, as in a set. It keeps schemas excluded from sets.
func Declarations(tools []Tool) map[string]string {
	tools = slices.Clone(tools)
	for i := range tools {
		for _, schema := range []*map[string]any{&tools[i].Input, &tools[i].Output} {
			if clean, err := cleanSchema(*schema); err == nil && *schema != nil {
				*schema = clean
			}
		}
	}
	return declarations(tools)
}

// IndexLine returns the line of a tool in the index.
var IndexLine = indexLine

// NewAttachment returns an attachment to a sandbox without a connection.
func NewAttachment(s *sandbox.Sandbox) *Attachment { return &Attachment{s: s} }

// ReadBehindClose reads a request of a connection that is closed during the read. The MCP SDK does the same if it
// cannot write. It reports whether the limits of the set are free afterwards.
func (a *Access) ReadBehindClose(line string) error {
	inside, host := net.Pipe()
	defer inside.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l := &link{
		access: a, ctx: ctx, cancel: cancel, c: host, lines: bufio.NewReader(strings.NewReader(line + "\n")),
		writing: make(chan struct{}, 1), open: map[jsonrpc.ID]*request{},
	}
	if err := l.Close(); err != nil {
		return err
	}
	if _, err := l.Read(ctx); err == nil {
		return errors.New("a closed connection has a request")
	}
	if !l.load().pending.TryAcquire(maxPending) {
		return errors.New("a request was not released")
	}
	l.load().pending.Release(maxPending)
	if len(l.load().large)+len(l.load().slots) > 0 {
		return errors.New("a place for a request is held")
	}
	return nil
}
