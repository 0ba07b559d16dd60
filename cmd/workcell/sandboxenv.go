package main

import (
	"context"
	"fmt"
	"maps"

	"github.com/workcell-dev/workcell/session"
)

// saveEnv keeps what `sessions open -e` set: later commands come from other processes. It lies in the state file, which is
// the user's alone: on the engine others could read it, and what lies in the sandbox belongs to the code there.
func (a *app) saveEnv(env map[string]string) func(context.Context, *session.Session) error {
	if len(env) == 0 {
		return nil
	}
	return func(ctx context.Context, s *session.Session) error { return a.records.AddEnv(ctx, s.ID(), env) }
}

// loadEnv returns the environment of a command: what the sandbox was opened with, and own over it.
func (a *app) loadEnv(ctx context.Context, s *session.Session, own map[string]string) (map[string]string, error) {
	if a.records == nil {
		fmt.Fprintln(a.stderr, "workcell: without what `sessions open -e` may have set, which the records hold")
		return own, nil
	}
	env, err := a.records.Env(ctx, s.ID())
	if err != nil {
		return nil, err
	}
	maps.Copy(env, own)
	return env, nil
}
