package mcpserver

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// What tests of package mcpserver_test need to see.

// Commands gives the simple commands of a shell line as text, computed words as "?".
func Commands(script string) (list []string, unknown string) {
	return texts(commandsIn(script))
}

// CommandsOfList does so for an argument list.
func CommandsOfList(argv []string, stdin *string) (list []string, unknown string) {
	return texts(commandsOf(argv, stdin))
}

func texts(c commands) ([]string, string) {
	var list []string
	for _, cmd := range c.list {
		words := make([]string, len(cmd))
		for i, w := range cmd {
			words[i] = "?"
			if w.static {
				words[i] = w.text
			}
		}
		list = append(list, strings.Join(words, " "))
	}
	return list, c.unknown
}

// Judge gives the rule that refuses a shell line; empty when none does.
func (p *Policy) Judge(script string) string {
	s := &Server{policy: *p}
	fail := s.checkCommands(func() commands { return commandsIn(script) })
	if fail == nil {
		return ""
	}
	_, rest, _ := strings.Cut(fail.Message, `"`)
	rule, _, _ := strings.Cut(rest, `"`)
	return rule
}

// FileRule gives the rule that refuses a file; empty when none does.
func (p *Policy) FileRule(name string) string { return p.fileRule(name) }

// SetSpareAfter sets how long a sandbox must be idle before it gives way.
func (s *Server) SetSpareAfter(d time.Duration) {
	s.room.Lock()
	defer s.room.Unlock()
	s.spareAfter = d
}

// Sweep ends sessions of execute_task that are idle at a time.
func (s *Server) Sweep(now time.Time) { s.sweep(now) }

// CapListener bounds the connections of a listener.
func CapListener(l net.Listener, most, each int) net.Listener {
	return newCappedListener(l, most, each, true)
}

// ClientOf gives what counts as one client of an address.
func ClientOf(hostport string) string { return clientOf(hostport) }

// Fault gives the code and the text that a message is refused with; zero when it is taken.
func Fault(data []byte) (code int64, text string) {
	if _, f := decodeMessage(data); f != nil {
		return f.code, f.text
	}
	return 0, ""
}

// ServeOn serves one client on a transport of the SDK's until it hangs up, as ServeStdio does on streams.
func (s *Server) ServeOn(ctx context.Context, t mcp.Transport) error {
	s.mu.Lock()
	sc, err := s.newScope(localOwner, false, true)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	ss, err := s.build(always(sc)).Connect(ctx, t, nil)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(s.ctx, func() { _ = ss.Close() }) // its end is all that is wanted
	defer stop()
	return ss.Wait()
}

// Seats bound sessions.
type Seats struct{ s *seats }

// NewSeats gives seats for so many sessions of one client.
func NewSeats(most int) Seats { return Seats{newSeats(most, most, time.Hour)} }

// Take gives what ties a session to a seat and what takes back a seat without one; ok is false when there is none.
func (s Seats) Take() (seated func(*mcp.ServerSession), release func(), ok bool) {
	p, status, _ := s.s.take("client")
	if status == http.StatusTooManyRequests {
		return nil, nil, false
	}
	return p.seated, p.release, true
}

// Taken gives how many seats are taken, of all clients and of the one there is.
func (s Seats) Taken() (total, client int) {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	return s.s.total, s.s.taken["client"]
}
