package mcpserver

import (
	"net"
	"strings"
	"time"
)

// What tests of package mcpserver_test need to see.

// Commands gives the simple commands of a shell line as text, computed words as "?".
func Commands(script string) (list []string, unknown string) {
	return texts(commandsIn(script, nil, false))
}

// CommandsOfList does so for an argument list.
func CommandsOfList(argv []string, stdin *string) (list []string, unknown string) {
	return texts(commandsOf(argv, stdin, false))
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
	fail := s.checkCommands(func() commands { return commandsIn(script, nil, false) })
	if fail == nil {
		return ""
	}
	_, rest, _ := strings.Cut(fail.Message, `"`)
	rule, _, _ := strings.Cut(rest, `"`)
	return rule
}

// FileRule gives the rule that refuses a file; empty when none does.
func (p *Policy) FileRule(name string) string { return p.fileRule(name) }

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
