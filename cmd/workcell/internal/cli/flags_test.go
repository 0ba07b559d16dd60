package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestBeforeCommand verifies which flags belong to workcell and which to the command in a sandbox.
func TestBeforeCommand(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"box ls -la --help":       "env= box ls -la --help",
		"box echo -- -e x":        "env= box echo -- -e x",
		"-e A box -e B -- ls -e":  "env=A,B box ls -e",
		"box -e A ls -e B -h":     "env=A box ls -e B -h",
		"box -- -e A":             "env= box -e A",
		"box":                     "env= box",
		"box -h":                  "help",
		"box -x ls":               "unknown shorthand flag: 'x' in -x",
		"box --env=A --envs B ls": "unknown flag: --envs",
	} {
		var env []string
		got := ""
		cmd := &cobra.Command{
			Use: "exec", Args: cobra.MinimumNArgs(1), SilenceErrors: true, SilenceUsage: true,
			RunE: func(_ *cobra.Command, args []string) error {
				got = strings.Join(slices.Insert(args, 0, "env="+strings.Join(env, ",")), " ")
				return nil
			},
		}
		cmd.SetHelpFunc(func(*cobra.Command, []string) { got = "help" })
		EnvFlag(cmd.Flags(), &env)
		BeforeCommand(cmd).SetArgs(strings.Fields(line))
		if err := cmd.Execute(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}
