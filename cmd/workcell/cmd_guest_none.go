//go:build no_kubernetes

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newGuestCmd(*app) *cobra.Command {
	return &cobra.Command{Use: "guest", Short: "Not in this build", Hidden: true, DisableFlagParsing: true, RunE: func(*cobra.Command, []string) error {
		return fail(exitUnavailable, errors.New("this workcell was built without Kubernetes, whose pods need the guest's image (tag no_kubernetes)"),
			"use a workcell that was built with it")
	}}
}
