package mcpserver

import (
	"context"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/httpguard"
	"github.com/workcell-dev/workcell/internal/interrupt"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// Unexported identifiers for package mcpserver_test.

// Commands returns the simple commands of a shell line as text, with "?" for computed words.
func Commands(script string) (list []string, unknown string) {
	return texts(commandsIn(script))
}

// CommandsOfList is like Commands, for an argument list.
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

// Judge returns the rule that refuses a shell line, or an empty string if no rule does.
func (p *Policy) Judge(script string) string {
	s := &Server{policy: *p}
	fail := s.checkCommands(toolspec.Args{Line: script})
	if fail == nil {
		return ""
	}
	_, rest, _ := strings.Cut(fail.Message, `"`)
	rule, _, _ := strings.Cut(rest, `"`)
	return rule
}

// FileRule returns the rule that refuses a file, or an empty string if no rule does.
func (p *Policy) FileRule(name string) string { return p.fileRule(name) }

// SetSpareAfter sets the minimum idle time after which a new sandbox may replace a sandbox.
func (s *Server) SetSpareAfter(d time.Duration) {
	s.room.Lock()
	defer s.room.Unlock()
	s.spareAfter = d
}

// SetWaits sets the maximum wait for a call and the minimum duration of calls with kept results. It must be called
// before any call.
func (s *Server) SetWaits(wait, keep time.Duration) { s.maxWait, s.keepAfter = wait, keep }

// SetCommentEvery sets the interval of comments in event streams. It must be called before any request.
func (s *Server) SetCommentEvery(d time.Duration) { s.commentEvery = d }

// Sweep ends sessions that are idle at time now.
func (s *Server) Sweep(now time.Time) { s.sweep(now) }

// Unused returns the number of HTTP sessions that would end at time now.
func (s *Server) Unused(now time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sc := range s.bound {
		if s.isUnused(sc, now) {
			n++
		}
	}
	return n
}

// KeepAfterEnd keeps a call whose scope has ended, and returns the number of kept calls.
func (s *Server) KeepAfterEnd(ctx context.Context) (int, error) {
	s.mu.Lock()
	sc, err := s.newScope(newRun(record.NamespaceMCP), localOwner, false)
	s.mu.Unlock()
	if err == nil {
		err = s.endScope(ctx, sc, true)
	}
	j := &job{id: "task_x", scope: sc}
	j.Job = interrupt.Start(ctx, nil, func(ctx context.Context) (*mcp.CallToolResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	defer j.Cancel()
	s.keep(j)
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.jobs), err
}

// KeptBytes returns the number of kept calls and the size of their results.
func (s *Server) KeptBytes() (calls, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		bytes += j.bytes
	}
	return len(s.jobs), bytes
}

// Fault returns the error code and text for an invalid message. The code is zero if the message is valid.
func Fault(data []byte) (code int64, text string) {
	if _, f := decodeMessage(data); f != nil {
		return f.code, f.text
	}
	return 0, ""
}

// ServeOn serves one client on an SDK transport until it hangs up, like ServeStdio.
func (s *Server) ServeOn(ctx context.Context, t mcp.Transport) error {
	s.mu.Lock()
	sc, err := s.newScope(newRun(record.NamespaceMCP), localOwner, false)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	ss, err := s.build(always(sc), transportPipe).Connect(ctx, t, nil)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(s.ctx, func() { _ = ss.Close() }) // the error does not matter
	defer stop()
	return ss.Wait()
}

// Places are the session places of one client.
type Places struct{ l *httpguard.Limiter }

// NewPlaces returns most places.
func NewPlaces(most int) Places {
	return Places{newLimiter(HTTPOptions{MaxSessions: most, MaxOwnerSessions: most})}
}

// Reserve reserves a place. ok is false if no place is free.
func (p Places) Reserve() (bind func() bool, done, give func(), ok bool) {
	place, refusal := reserve(p.l, "client")
	if refusal != nil {
		return nil, nil, nil, false
	}
	return place.bind, place.done, place.give, true
}

// GetListed returns the files of a list like get_files.
func (s *Server) GetListed(
	ctx context.Context, box *session.Session, list ...sandbox.FileInfo,
) (getFilesOutput, error) {
	g := &gathering{server: s, sandbox: box, seen: map[string]bool{}}
	for _, e := range list {
		if err := g.entry(ctx, e); err != nil {
			return g.out, err
		}
	}
	return g.out, nil
}

// Output types for tests.
type (
	GetFilesOutput      = getFilesOutput
	SessionStatusOutput = sessionStatusOutput
)

// TakeBytes returns a function that reserves memory for request bodies. all is the memory for all clients together. The
// function returns the HTTP status of a refusal, or zero on success.
func TakeBytes(all int64) func(client string, n int64) (status int) {
	l := newLimiter(HTTPOptions{MaxBodyBytes: all})
	return func(client string, n int64) int {
		if refusal := l.Take(client, bodyBytes, n); refusal != nil {
			return refusal.Status
		}
		return 0
	}
}
