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

// connect bridges the standard streams to the guest. What else a host wants of its first stream, a claim and a report, it gets of the
// same start of a program.
func connect(args []string) int {
	proc.HideProcess()
	if len(args) > 0 && args[0] == "--report" {
		if err := introduce(args[1:]); err != nil {
			return fail(os.Stderr, err)
		}
	}
	if err := server.Connect(os.Stdin, os.Stdout); err != nil {
		return fail(os.Stderr, err)
	}
	return 0
}

// introduce claims the sandbox for an owner, if args name one, and reports.
func introduce(args []string) (err error) {
	claimed := false
	if len(args) == 2 {
		claimed, err = claim(args[0], args[1])
	}
	if err != nil {
		return err
	}
	return report(os.Stdout, claimed)
}

// claim reports whether the sandbox is the owner's from now on.
func claim(owner, orphan string) (bool, error) {
	alone, err := time.ParseDuration(orphan)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), claimPatience)
	defer cancel()
	conn, err := server.Dial()
	if err != nil {
		return false, err
	}
	c, err := client.New(ctx, conn, &client.Options{Fresh: true})
	if err != nil {
		return false, err
	}
	err = c.Claim(ctx, wire.ClaimRequest{Owner: owner, OrphanMillis: alone.Milliseconds()})
	claimed := err == nil
	if is := (*wire.Error)(nil); errors.As(err, &is) && is.Code == wire.CodeExists {
		err = nil
	}
	return claimed, errors.Join(err, c.Close())
}
