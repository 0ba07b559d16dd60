package mcpserver

import (
	"context"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// What tests of package mcpserver_test need to see.

// Commands returns the simple commands of a shell line as text, computed words as "?".
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

// Judge returns the rule that refuses a shell line; empty when none does.
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

// FileRule returns the rule that refuses a file; empty when none does.
func (p *Policy) FileRule(name string) string { return p.fileRule(name) }

// SetSpareAfter sets how long a sandbox must be idle before a new one may replace it.
func (s *Server) SetSpareAfter(d time.Duration) {
	s.room.Lock()
	defer s.room.Unlock()
	s.spareAfter = d
}

// Sweep ends sessions of execute_task that are idle at a time.
func (s *Server) Sweep(now time.Time) { s.sweep(now) }

// Fault returns the code and the text that a message is refused with; zero when it is taken.
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

// SessionLimiter bounds the sessions of one client.
type SessionLimiter struct{ l *limiter }

// NewSessionLimiter returns a limiter of so many sessions.
func NewSessionLimiter(most int) SessionLimiter {
	return SessionLimiter{newLimiter(HTTPOptions{MaxSessions: most, MaxOwnerSessions: most})}
}

// Reserve returns what binds a session to a place and what ends the request that it was reserved for; ok is false when
// there is none.
func (s SessionLimiter) Reserve() (bind func(*mcp.ServerSession), done func(), ok bool) {
	r, _, _ := s.l.reserve("client")
	if r == nil {
		return nil, nil, false
	}
	return r.bind, r.done, true
}

// Taken returns how many places are taken.
func (s SessionLimiter) Taken() int {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	return s.l.sessions
}
