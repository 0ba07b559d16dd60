package hosttools

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/sandbox"
)

// serviceName is the session service for connections to the host tools.
const serviceName = "tools"

// Layout of the declarations in a sandbox, and limits for writing them.
const (
	declarationsDir = workspace + "/.workcell/tools"
	digestChars     = 12 // number of digest characters in a set's directory name
	writersAtOnce   = 8
)

// Attachment lets commands of a session call host tools.
type Attachment struct {
	s    *sandbox.Sandbox
	addr string
}

// Attach makes this process serve host tool calls of commands in s until s is closed. Only the grant of a command
// decides which tools it may call, so any attachment of the session can serve it. Attaching to a session twice costs
// nothing.
func Attach(ctx context.Context, s *sandbox.Sandbox) (*Attachment, error) {
	addr, _, err := s.Serve(ctx, sandbox.Service{Name: serviceName, Handle: serve})
	if err != nil && addr == "" {
		return nil, fmt.Errorf("host tools: %w", err)
	}
	return &Attachment{s: s, addr: addr}, nil
}

// serve handles a connection of a command.
func serve(ctx context.Context, c *sandbox.ServiceConn) {
	if a, ok := c.Grant.(*Access); ok {
		_ = a.Serve(ctx, c, c.ExecID, c.Span) // errors of a command's connection concern only the command
	}
}

// Grant lets the command of req call the tools of set, and returns the access. Grant overrides no variables of req. It
// appends directories to the entries in req.EnvBefore. An approver in ctx replaces the approver of the set.
func (a *Attachment) Grant(ctx context.Context, set *Set, req *sandbox.ExecRequest) *Access {
	extend := func(ctx context.Context, id string, by time.Duration) error { return a.s.Command(id).Extend(ctx, by) }
	settings := a.s.Settings()
	settings.Tools = set.Digest()
	access := set.Access(Command{
		SandboxID: a.s.ID(), Files: a.s, Extend: extend, Approver: ApproverFromContext(ctx), Settings: settings,
	})
	req.Services = append(slices.Clone(req.Services), sandbox.ServiceGrant{Name: serviceName, Value: access})
	req.Tools = settings.Tools
	env := map[string]string{"WORKCELL_TOOLS": a.addr, "WORKCELL_TOOLS_DIR": set.dir()}
	maps.Copy(env, req.Env)
	req.Env = env
	before := map[string]string{
		"PATH": embed.Dir + "/bin", "PYTHONPATH": embed.Dir + "/lib/python", "NODE_PATH": embed.Dir + "/lib/node",
	}
	for name, list := range req.EnvBefore {
		before[name] = strings.TrimSuffix(list+":"+before[name], ":")
	}
	req.EnvBefore = before
	return access
}

// dir returns the directory in the sandbox for the set's declarations.
func (s *Set) dir() string { return declarationsDir + "/" + s.digest[:digestChars] }

// Declare writes the declarations of set into the sandbox, the index last. If the index is up to date, Declare does
// nothing. Calls do not depend on declarations.
func (a *Attachment) Declare(ctx context.Context, set *Set) error {
	index := path.Join(set.dir(), indexName)
	text, _, err := a.s.ReadFileBytes(ctx, index, sandbox.ReadFileOptions{})
	if err == nil && string(text) == set.declared[indexName] {
		return nil
	}
	if _, err := a.s.RemoveFile(ctx, set.dir(), true); err != nil && !errors.Is(err, backend.ErrNotFound) {
		return err
	}
	write := func(ctx context.Context, name, text string) error {
		_, err := a.s.WriteFile(ctx, name, strings.NewReader(text), sandbox.WriteFileOptions{
			Mode: declarationMode, Overwrite: true, Size: int64(len(text)),
		})
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writersAtOnce)
	for name, text := range set.declared {
		if name != indexName {
			g.Go(func() error { return write(gctx, path.Join(set.dir(), name), text) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return write(ctx, index, set.declared[indexName])
}

const declarationMode fs.FileMode = 0o444

// sweepTimeout limits the removal of results.
const sweepTimeout = 30 * time.Second

// Sweep removes the result files of an ended command, except files named by the command.
func (a *Attachment) Sweep(ctx context.Context, access *Access) error {
	names := access.takeSaved()
	if len(names) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTimeout)
	defer cancel()
	var errs []error
	for _, name := range names {
		_, err := a.s.RemoveFile(ctx, name, false)
		if !errors.Is(err, backend.ErrNotFound) && !errors.Is(err, backend.ErrClosed) && !errors.Is(err, backend.ErrLost) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// takeSaved returns the new files in resultsDir since the previous call.
func (a *Access) takeSaved() []string {
	a.counts.mu.Lock()
	defer a.counts.mu.Unlock()
	names := a.saved
	a.saved = nil
	return names
}

func (a *Access) noteSaved(name string) {
	if !strings.HasPrefix(name, resultsDir+"/") {
		return
	}
	a.counts.mu.Lock()
	defer a.counts.mu.Unlock()
	a.saved = append(a.saved, name)
}
