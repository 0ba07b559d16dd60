//go:build no_kubernetes

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func newGuestCmd(*command) *cobra.Command {
	return &cobra.Command{Use: "guest", Short: "Not available in this build", Hidden: true, DisableFlagParsing: true, RunE: func(*cobra.Command, []string) error {
		return fail(exitUnavailable, errors.New("the guest agent image requires Kubernetes, which this build does not include (tag no_kubernetes)"),
			"use a build with Kubernetes")
	}}
}
