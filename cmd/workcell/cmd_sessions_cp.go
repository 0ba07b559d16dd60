package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/transfer"
)

func newSessionsCpCmd(a *app) *cobra.Command {
	return a.verb(engineFlags, &cobra.Command{
		Use:   "cp [flags] SANDBOX:PATH FILE|DIR|-, or FILE|DIR|- SANDBOX:PATH",
		Short: "Copy files between a sandbox and here",
		Long: `Copy a file or a directory with all below it out of a sandbox, or into one. The sandbox is named as in
` + "`workcell sessions exec`" + `; PATH lies below /workspace or /tmp. - is standard input or output, for one file. A file here whose
name has a colon is written ./NAME.

Where the destination is a directory, the source goes into it under its own name; SOURCE/. stands for what is in a
directory. Else the destination is the new name, and the directory above it must be there. Files that are there are
replaced, unless the sandbox's user may not write them; others stay.

Permission bits are kept; owners and times are not. A file appears whole or not at all. Below the source, links and
special files are not copied and nothing is read or written through a link that leads outside. What cannot be copied is
named on standard error, the rest is copied, and the exit code is 1. At most 10,000 files and directories of 16 GiB in all,
each at most 1 GiB. /workspace/.workcell is left out unless it is named.`,
		Example: "  workcell sessions cp src/. mybox:src\n  workcell sessions cp mybox:report.csv -\n  workcell sessions cp mybox:/workspace ./result",
		Args:    checkCopyArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withManager(cmd.Context(), stateWanted, func(ctx context.Context, m *session.Manager) error {
				return a.copyFiles(ctx, m, args)
			}, sandboxNames(remotePath(args))...)
		},
	})
}

func checkCopyArgs(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usageError(errors.New("name a source and a destination"), "workcell sessions cp SANDBOX:PATH FILE, or FILE SANDBOX:PATH")
	}
	if inSandbox(args[0]) == inSandbox(args[1]) {
		return usageError(errors.New("one of source and destination, not both, must be in a sandbox"),
			"write it SANDBOX:PATH; a file here with a colon in its name is ./NAME")
	}
	return nil
}

// inSandbox reports whether an argument has the form SANDBOX:PATH.
func inSandbox(arg string) bool {
	return strings.Contains(arg, ":") && !strings.HasPrefix(arg, ".") && !filepath.IsAbs(arg) && filepath.VolumeName(arg) == ""
}

// copyFiles does one copy.
func (a *app) copyFiles(ctx context.Context, m *session.Manager, args []string) error {
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
	p := newProgress(a.stderr)
	defer p.Close()
	watch := transfer.Observer{
		Progress: func(e transfer.Event) { p.Status(copyStatus(e)) },
		Failed:   func(path string, reason error) { p.Line("workcell: %s: %s", path, reason) },
	}
	if inSandbox(src) {
		return transfer.Out(ctx, s, src, name, dst, a.stdout, watch)
	}
	return transfer.In(ctx, s, src, a.stdin, dst, name, watch)
}

// copyStatus describes how far a copy has come.
func copyStatus(e transfer.Event) string {
	switch {
	case e.Entries > 0:
		return fmt.Sprintf("copying %d of %d, %s: %s", e.Entry, e.Entries, byteSize(e.Bytes), e.Path)
	case e.Size > 0:
		return fmt.Sprintf("copying %s: %s of %s", e.Path, byteSize(e.Bytes), byteSize(e.Size))
	}
	return fmt.Sprintf("copying %s: %s", e.Path, byteSize(e.Bytes))
}

// remotePath returns the argument of the two that is SANDBOX:PATH.
func remotePath(args []string) string {
	if inSandbox(args[0]) {
		return args[0]
	}
	return args[1]
}

// sandboxNames returns what may be the name of the sandbox in SANDBOX:PATH, the longest first: keys have colons too.
func sandboxNames(arg string) []string {
	var names []string
	for at := strings.LastIndexByte(arg, ':'); at >= 0; at = strings.LastIndexByte(arg[:at], ':') {
		names = append(names, arg[:at])
	}
	return names
}

// splitSandboxPath finds the sandbox that SANDBOX:PATH begins with. The longest name wins.
func splitSandboxPath(list []session.Info, arg string) (session.Info, string, error) {
	names := sandboxNames(arg)
	for _, name := range names {
		info, err := findSandbox(list, name)
		if err == nil || !errors.Is(err, backend.ErrNotFound) {
			return info, arg[len(name)+1:], err
		}
	}
	return session.Info{}, "", &unknownSandbox{fmt.Sprintf("no sandbox has the id, key or name that %q begins with", arg), names}
}
