package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
)

func newSandboxCpCmd(a *command) *cobra.Command {
	return a.Verb(cli.EngineFlags, &cobra.Command{
		Use:   "cp [flags] SANDBOX:PATH FILE|DIR|- or cp [flags] FILE|DIR|- SANDBOX:PATH",
		Short: "Copy files to or from a sandbox",
		Long: `Copy a file, or a directory with its contents, to or from a sandbox. PATH must be in /workspace or /tmp. When
you copy a single file, you can use - for standard input or output. If the name of a local file contains a colon,
write ./NAME.

If the destination is a directory, the source is copied into it under its own name. Use SOURCE/. to copy only the
contents of a directory. Otherwise the destination is the new name, and its parent directory must exist. Existing
files with the same name are replaced if the sandbox's user can write to them. Other files are kept.

Permission bits are preserved, but owners and times are not. A file is never copied partially. Links and special
files in a directory are not copied, and links that lead outside are never followed. If a file cannot be copied, the
command reports it, copies the rest, and exits with 1. A copy can contain up to 10,000 files and directories.
Its size is limited to 16 GiB, and to 1 GiB for each file. /workspace/.workcell is copied only if you name it.`,
		Example: "  workcell sandbox cp src/. mybox:src\n  workcell sandbox cp mybox:report.csv -\n" +
			"  workcell sandbox cp mybox:/workspace ./result",
		Args: checkCopyArgs,
		RunE: a.managed(app.StateWanted, func(args []string) []string { return sandboxNames(remotePath(args)) },
			a.copyFiles),
	})
}

func checkCopyArgs(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return app.UsageError(errors.New("source and destination required"),
			"workcell sandbox cp SANDBOX:PATH FILE, or FILE SANDBOX:PATH")
	}
	if slices.Contains(args, "") {
		return app.UsageError(errors.New("source or destination is empty"), "use . for the current directory")
	}
	if inSandbox(args[0]) == inSandbox(args[1]) {
		return app.UsageError(errors.New("either source or destination must be in a sandbox"),
			"use SANDBOX:PATH for the sandbox, and ./NAME for a local file with a colon in its name")
	}
	return nil
}

// inSandbox reports whether an argument has the form SANDBOX:PATH.
func inSandbox(arg string) bool {
	return strings.Contains(arg, ":") && !strings.HasPrefix(arg, ".") && !filepath.IsAbs(arg) &&
		filepath.VolumeName(arg) == ""
}

// copyFiles copies a file or directory between the host and a sandbox.
func (a *command) copyFiles(ctx context.Context, m *app.Manager, args []string) error {
	src, dst := args[0], args[1]
	list, err := m.List(ctx)
	if err != nil {
		return err
	}
	info, name, err := splitSandboxPath(list, remotePath(args))
	if err != nil {
		return err
	}
	s, err := m.Connect(ctx, info.ID)
	if err != nil {
		return err
	}
	p := a.Progress()
	defer p.Close()
	watch := transfer.Observer{
		Progress: func(e transfer.Event) { p.Status(copyStatus(e)) },
		Failed:   func(path string, reason error) { p.Line("workcell: %s: %s", path, reason) },
	}
	if inSandbox(src) {
		return transfer.Out(ctx, s, src, name, dst, a.Contents(), watch)
	}
	return transfer.In(ctx, s, src, a.Stdin, dst, name, watch)
}

// copyStatus returns the progress of a copy as text.
func copyStatus(e transfer.Event) string {
	switch {
	case e.Entries > 0:
		return fmt.Sprintf("copying %d of %d, %s: %s", e.Entry, e.Entries, cli.ByteSize(e.Bytes), e.Path)
	case e.Size > 0:
		return fmt.Sprintf("copying %s: %s of %s", e.Path, cli.ByteSize(e.Bytes), cli.ByteSize(e.Size))
	}
	return fmt.Sprintf("copying %s: %s", e.Path, cli.ByteSize(e.Bytes))
}

// remotePath returns the argument of the form SANDBOX:PATH.
func remotePath(args []string) string {
	if inSandbox(args[0]) {
		return args[0]
	}
	return args[1]
}

// sandboxNames returns all possible sandbox names in SANDBOX:PATH, longest first, because keys contain colons too.
func sandboxNames(arg string) []string {
	var names []string
	for at := strings.LastIndexByte(arg, ':'); at >= 0; at = strings.LastIndexByte(arg[:at], ':') {
		names = append(names, arg[:at])
	}
	return names
}

// splitSandboxPath splits SANDBOX:PATH. If several sandboxes match, it uses the longest name.
func splitSandboxPath(list []session.Info, arg string) (session.Info, string, error) {
	names := sandboxNames(arg)
	for _, name := range names {
		info, err := app.FindSandbox(list, name)
		if err == nil || !errors.Is(err, backend.ErrNotFound) {
			return info, arg[len(name)+1:], err
		}
	}
	return session.Info{}, "", &app.UnknownSandbox{Text: fmt.Sprintf("sandbox in %q", arg), Names: names}
}
