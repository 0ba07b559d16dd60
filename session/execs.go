package session

import (
	"context"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// ListExecs describes the commands that the sandbox knows, those of other processes too, in the order of their starts:
// all that run, and the latest of those that ended. Looking changes nothing.
func (s *Session) ListExecs(ctx context.Context) ([]ExecStatus, error) {
	return s.statuses(ctx, "ListExecs", (*client.Conn).Execs)
}

// KillAll ends every command of the sandbox, by TERM, a grace, then KILL, and what ended ones left running. It returns the
// commands that it ended.
func (s *Session) KillAll(ctx context.Context) ([]ExecStatus, error) {
	return s.statuses(ctx, "KillAll", (*client.Conn).KillAll)
}

// statuses returns the guest's answer to a question about all commands.
func (s *Session) statuses(ctx context.Context, op string, question func(*client.Conn, context.Context) ([]wire.ExecStatus, error)) ([]ExecStatus, error) {
	known, err := ask(ctx, s, true, answerMargin, func(ctx context.Context, conn *client.Conn) ([]wire.ExecStatus, error) {
		return question(conn, ctx)
	})
	if err != nil {
		return nil, wrapError(op, s.m.driver, s.id, err)
	}
	list := make([]ExecStatus, len(known))
	for i, w := range known {
		list[i] = guestStatus(w)
	}
	return list, nil
}
