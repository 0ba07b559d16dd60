package session

import (
	"context"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// ListExecs describes the commands that the sandbox knows, those of other processes too, in the order of their starts:
// all that run, and the latest of those that ended. Looking changes nothing.
func (s *Session) ListExecs(ctx context.Context) ([]ExecStatus, error) {
	known, err := s.knownExecs(ctx)
	return s.statuses("ListExecs", known, err)
}

// KillAll ends every command of the sandbox, by TERM, a grace, then KILL, and what ended ones left running. It returns the
// commands that it ended.
func (s *Session) KillAll(ctx context.Context) ([]ExecStatus, error) {
	killed, err := s.listCall(ctx, (*client.Conn).KillAll)
	return s.statuses("KillAll", killed, err)
}

func (s *Session) statuses(op string, known []wire.ExecStatus, err error) ([]ExecStatus, error) {
	if err != nil {
		return nil, wrapError(op, s.m.driver, s.id, err)
	}
	list := make([]ExecStatus, len(known))
	for i, w := range known {
		list[i] = guestStatus(w)
	}
	return list, nil
}

// knownExecs asks the guest for its commands.
func (s *Session) knownExecs(ctx context.Context) ([]wire.ExecStatus, error) {
	return s.listCall(ctx, (*client.Conn).Execs)
}

func (s *Session) listCall(ctx context.Context, ask func(*client.Conn, context.Context) ([]wire.ExecStatus, error)) (list []wire.ExecStatus, err error) {
	err = s.call(ctx, true, func(ctx context.Context, conn *client.Conn) (err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, answerMargin, errNoAnswer)
		defer cancel()
		list, err = ask(conn, ctx)
		return noAnswer(ctx, err)
	})
	return list, err
}
