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
	if err != nil {
		return nil, wrapError("ListExecs", s.m.driver, s.id, err)
	}
	list := make([]ExecStatus, len(known))
	for i, w := range known {
		list[i] = guestStatus(w)
	}
	return list, nil
}

// knownExecs asks the guest for its commands.
func (s *Session) knownExecs(ctx context.Context) (list []wire.ExecStatus, err error) {
	err = s.call(ctx, true, func(ctx context.Context, conn *client.Conn) (err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, answerMargin, errNoAnswer)
		defer cancel()
		list, err = conn.Execs(ctx)
		return noAnswer(ctx, err)
	})
	return list, err
}
