package egress

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer is a DNS server for names below .test. They resolve to the host's loopback address unless set changes it.
type nameServer struct {
	conn net.PacketConn

	mu      sync.Mutex // guards the fields below
	answers map[string][][]netip.Addr
	asked   map[string]int // number of queries for IPv4 addresses
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	s := &nameServer{conn: conn, answers: map[string][][]netip.Addr{}, asked: map[string]int{}}
	ended := make(chan struct{})
	go func() { defer close(ended); s.serve() }()
	t.Cleanup(func() {
		must(t, conn.Close())
		<-ended
	})
	return s
}

// resolver returns a resolver for the server.
func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", s.conn.LocalAddr().String())
	}}
}

// set sets consecutive answers to the queries for a name. The last answer is repeated.
func (s *nameServer) set(name string, answers ...[]netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[name] = answers
}

// questions returns the number of queries for a name.
func (s *nameServer) questions(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[name]
}

// next returns the answer to a query for IPv4 addresses.
func (s *nameServer) next(name string) []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.asked[name]
	s.asked[name]++
	switch list := s.answers[name]; {
	case list != nil:
		return list[min(n, len(list)-1)]
	case strings.HasSuffix(name, ".test"):
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	}
	return nil
}

func (s *nameServer) serve() {
	buf := make([]byte, 4096)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		if q.Type == dnsmessage.TypeA {
			for _, addr := range s.next(strings.TrimSuffix(q.Name.String(), ".")) {
				m.Answers = append(m.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: addr.As4()},
				})
			}
			if m.Answers == nil {
				m.RCode = dnsmessage.RCodeNameError
			}
		}
		if answer, err := m.Pack(); err == nil {
			_, _ = s.conn.WriteTo(answer, from) // if it is lost, the client repeats the query
		}
	}
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}
