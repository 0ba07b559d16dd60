package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/internal/checktest"
)

var update = flag.Bool("update", false, "rewrite the reference pages of the commands")

var guestLines = regexp.MustCompile(`(?m)^(  guest |- \[workcell guest\]\().*\n`)

// TestReference verifies that docs/reference/cli has a page for each command, with the text of --help.
func TestReference(t *testing.T) {
	t.Parallel()
	const dir = "../../docs/reference/cli"
	var help bytes.Buffer
	root := cli.Root(cli.New(strings.NewReader(""), &help, io.Discard, ""), commands()...)
	file := func(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "_") + ".md" }
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		help.Reset()
		checktest.Must(t, cmd.Help())
		page := fmt.Sprintf("# %s\n\n```text\n%s\n```\n", cmd.CommandPath(), strings.TrimSpace(help.String()))
		if cmd.HasAvailableSubCommands() || cmd.HasParent() {
			page += "\nSee also:\n\n"
		}
		if cmd.HasParent() {
			page += fmt.Sprintf("- [%s](%s)\n", cmd.Parent().CommandPath(), file(cmd.Parent()))
		}
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() && sub.Name() != "help" {
				page += fmt.Sprintf("- [%s](%s): %s\n", sub.CommandPath(), file(sub), sub.Short)
				check(sub)
			}
		}
		path := filepath.Join(dir, file(cmd))
		if *update {
			checktest.Must(t, os.WriteFile(path, []byte(page), 0o644))
		}
		got, err := os.ReadFile(path)
		if guest, _, _ := root.Find([]string{"guest"}); guest.Hidden { // in a build without Kubernetes
			got = guestLines.ReplaceAll(got, nil)
		}
		if diff := cmp.Diff(page, string(got)); err != nil || diff != "" {
			t.Errorf("%s (-want +got), rewrite it with `go test ./cmd/workcell -run TestReference -update`: %v\n%s", path, err, diff)
		}
	}
	check(root)
}
