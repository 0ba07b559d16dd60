package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// claimPatience bounds a claim: whoever asked for one waits.
const claimPatience = 10 * time.Second

// connect bridges the standard streams to the guest. With an owner and a time it claims the sandbox before, and says so with a
// byte: one start of a program for both.
func connect(args []string) int {
	proc.HideProcess()
	if len(args) == 2 {
		if err := claim(args[0], args[1]); err != nil {
			return fail(os.Stderr, err)
		}
	}
	if err := server.Connect(os.Stdin, os.Stdout); err != nil {
		return fail(os.Stderr, err)
	}
	return 0
}

func claim(owner, orphan string) error {
	alone, err := time.ParseDuration(orphan)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), claimPatience)
	defer cancel()
	conn, err := server.Dial()
	if err != nil {
		return err
	}
	c, err := client.New(ctx, conn, &client.Options{Fresh: true})
	if err != nil {
		return err
	}
	said := wire.BridgeClaimed
	err = c.Claim(ctx, wire.ClaimRequest{Owner: owner, OrphanMillis: alone.Milliseconds()})
	if is := (*wire.Error)(nil); errors.As(err, &is) && is.Code == wire.CodeExists {
		said, err = 0, nil
	}
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	_, err = os.Stdout.Write([]byte{said})
	return err
}
