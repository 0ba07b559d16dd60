package tools

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

func (b *binding) openSandbox(ctx context.Context, in openInput) (out openOutput, err error) {
	name := b.name(ctx)
	if in.SessionKey != "" {
		name = in.SessionKey
		if err := b.run(ctx).Key(name).Validate(); err != nil {
			return out, toolspec.Failf(toolspec.CodeInvalid, "session_key %q is not the name of a sandbox",
				sanitize.Clip(in.SessionKey)).
				WithRemediation("Use up to 128 letters, digits, '.', '_', and '-', or omit session_key for the agent's own " +
					"sandbox.")
		}
		if !b.mayUse(ctx, name) {
			return out, toolspec.Failf(toolspec.CodePermission, "this agent cannot access sandbox %q",
				sanitize.Clip(in.SessionKey)).
				WithRemediation("Omit session_key: an isolated agent can use only its own sandbox.")
		}
	}
	b.mu.Lock()
	before := b.opened[b.run(ctx).Key(name)]
	b.mu.Unlock()
	s, created, err := b.open(ctx, name)
	if err != nil {
		return out, err
	}
	info := s.Info()
	out = openOutput{
		SandboxID: s.ID(), Image: info.Image, Workdir: info.Workdir, Created: created, User: info.User,
		Network: string(info.Network), Limits: newOpenLimits(info), Ports: b.ports(), Note: b.note(info),
	}
	if before != nil && before.ID() != s.ID() {
		out.Note = "The earlier sandbox was lost and replaced: files from earlier calls are lost. " + out.Note
	} else if before != nil && before != s {
		out.Note = "The sandbox was restarted: files from earlier calls are kept, processes have exited. " + out.Note
	}
	return out, nil
}

func newOpenLimits(info session.Info) openLimits {
	l := frontmatter.LimitsOf(info.Limits)
	return openLimits{
		CPUMillicores: l.CPUMillicores, MemoryMB: l.MemoryMB, PIDs: l.PIDs, WorkspaceMB: l.WorkspaceMB, ShmMB: l.ShmMB,
		IdleTimeout: frontmatter.Duration(max(info.IdleTimeout, 0)), ExecTimeout: frontmatter.Duration(info.ExecTimeout),
		WorkspaceEnforcement: string(info.Workspace), RootMB: info.RootBytes >> 20,
		RootEnforcement: string(info.RootEnforcement),
	}
}

// ports returns the ports listed in the agent's file.
func (b *binding) ports() []openPort {
	var list []openPort
	for _, name := range slices.Sorted(maps.Keys(b.cfg.Ports)) {
		port := b.cfg.Ports[name]
		list = append(list, openPort{Name: name, Port: port, URL: fmt.Sprintf("http://127.0.0.1:%d", port)})
	}
	return list
}

// note describes the sandbox to a model, to avoid turns for discovering the same facts through failures.
func (b *binding) note(info session.Info) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Commands run in %s as user %s without privileges. ", info.Workdir, info.User)
	if info.Root == backend.RootWritable {
		text.WriteString("The whole file system is writable")
		if info.RootBytes > 0 {
			fmt.Fprintf(&text, ", with at most %d MiB outside of %s", info.RootBytes>>20, info.Workdir)
		}
		text.WriteString(". ")
	} else {
		fmt.Fprintf(&text, "Only %s and /tmp are writable. ", info.Workdir)
	}
	switch {
	case !info.Egress.IsZero():
		text.WriteString(reachNote(info.Egress) + " ")
	case info.Network == backend.NetworkNone:
		text.WriteString("There is no network, DNS included: pip, npm, apt and git cannot download anything. ")
	default:
		text.WriteString("Network access is allowed. ")
	}
	if note := installedNote(info.Environment); note != "" {
		text.WriteString(strings.TrimSpace(note) + " ")
	}
	for _, m := range info.Mounts {
		if name, ok := strings.CutPrefix(m.Target, session.CacheDir+"/"); ok {
			fmt.Fprintf(&text, "The host's %s cache is used. ", name)
			continue
		}
		if text.WriteString(m.Target + " is a shared directory that you can read"); m.Writable {
			text.WriteString(" and write")
		}
		text.WriteString(". ")
	}
	if len(b.cfg.Ports) > 0 {
		text.WriteString("Programs that users connect to must listen on 127.0.0.1 and one of the ports. ")
	}
	if len(info.Programs) > 0 {
		fmt.Fprintf(&text, "Interpreters found: %s. ", strings.Join(info.Programs, ", "))
	}
	if info.Limits.MemoryBytes > 0 {
		fmt.Fprintf(&text, "Memory is limited to %d MiB. ", info.Limits.MemoryBytes>>20)
	}
	if info.ExecTimeout > 0 {
		fmt.Fprintf(&text, "Commands are killed after %d s unless timeout_seconds is set (at most %d).",
			int64(info.ExecTimeout/time.Second), b.maxSeconds)
	}
	return strings.TrimSpace(text.String()) + b.hostNote()
}

func (b *binding) closeSandbox(ctx context.Context, in closeInput) (done, error) {
	if err := b.syncSiblings(ctx, in.SandboxID); err != nil {
		return done{}, err
	}
	none := in.SandboxID == "" && len(b.inRun(ctx)) == 0
	b.mu.Lock()
	again := b.released[in.SandboxID]
	b.mu.Unlock()
	if none || again && !in.DeleteWorkspace {
		return done{OK: true}, nil // no sandbox is open, so do not open one just to close it
	}
	find := b.sandbox
	if again {
		find = b.byID // the files may still exist
	}
	s, err := find(ctx, in.SandboxID)
	switch {
	case err == nil && in.DeleteWorkspace:
		err = b.remove(ctx, s)
	case err == nil:
		err = b.release(ctx, s)
	case toolspec.ErrorOf(err).Code == toolspec.CodeClosed:
		err = nil
		if in.DeleteWorkspace { // delete the remaining files of a failed removal
			err = b.box.manager.Remove(ctx, in.SandboxID, true)
		}
		if errors.Is(err, backend.ErrNotFound) {
			err = nil
		}
	case again && toolspec.ErrorOf(err).Code == toolspec.CodeNotFound:
		err = nil
	}
	return done{OK: true}, err
}
