package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// envFile holds, inside the sandbox, what `sessions open -e` set: later commands come from other processes, and an
// environment on the engine or in the state directory could be read by those who should not. Inside, every command has
// these values anyway, and they go with the sandbox.
const envFile = ".workcell/env.json"

// maxEnvFile is more than an environment can have.
const maxEnvFile = 1 << 20

// saveEnv is a session.Request's Prepare.
func saveEnv(env map[string]string) func(context.Context, *session.Session) error {
	if len(env) == 0 {
		return nil
	}
	return func(ctx context.Context, s *session.Session) error {
		raw, err := json.Marshal(env)
		if err != nil {
			return err
		}
		_, err = s.WriteFile(ctx, envFile, bytes.NewReader(raw), session.WriteFileOptions{Mode: 0o600, Overwrite: true, Size: int64(len(raw))})
		return err
	}
}

// addEnv adds to what a sandbox that was there before was opened with.
func addEnv(ctx context.Context, s *session.Session, env map[string]string) error {
	if len(env) == 0 {
		return nil
	}
	all, err := loadEnv(ctx, s, env)
	if err != nil {
		return err
	}
	return saveEnv(all)(ctx, s)
}

// loadEnv gives the environment of a command: what the sandbox was opened with, and own over it. The file is what
// programs in the sandbox made of it, which is no more than they could do to each other anyway.
func loadEnv(ctx context.Context, s *session.Session, own map[string]string) (map[string]string, error) {
	raw, _, err := s.ReadFileBytes(ctx, envFile, session.ReadFileOptions{Limit: maxEnvFile})
	if errors.Is(err, backend.ErrNotFound) {
		return own, nil
	}
	if err != nil {
		return nil, fmt.Errorf("environment of the sandbox: %w", err)
	}
	env := map[string]string{}
	if err := json.Unmarshal(raw, &env); err != nil {
		return nil, fmt.Errorf("environment of the sandbox: %s is damaged: %w", envFile, err)
	}
	maps.Copy(env, own)
	return env, nil
}
