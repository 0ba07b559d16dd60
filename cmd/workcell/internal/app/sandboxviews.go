package app

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

// Sandboxes returns the views of the sandboxes from Infos.
func (m *Manager) Sandboxes(ctx context.Context, all bool) ([]SandboxView, error) {
	list, err := m.Infos(ctx, all)
	left, _ := admin.Abandoned(ctx, m.Manager) // without it, all sandboxes are shown as owned by living processes
	views := make([]SandboxView, len(list))
	for i, info := range list {
		views[i] = ViewSandbox(info, left...)
	}
	return views, err
}

// Infos returns the sandboxes of the manager's engine, sorted by creation time. If all is set, it includes sandboxes
// that exist only in the records.
func (m *Manager) Infos(ctx context.Context, all bool) ([]session.Info, error) {
	list, err := m.List(ctx)
	if err != nil || !all || m.Records == nil {
		return list, err
	}
	recs, err := m.Records.List(ctx, record.Closed)
	for _, rec := range recs {
		if rec.Engine == m.Engine && !slices.ContainsFunc(list, func(s session.Info) bool { return s.ID == rec.ID }) {
			info := session.Info{
				ID: rec.ID, Key: rec.Key, Run: rec.Key.Run(), Reason: rec.Reason, User: rec.User, Created: rec.Created,
				Backend: m.Backend().Name(), EngineID: rec.EngineID, IdlePolicy: rec.IdlePolicy, State: StateRemoved,
			}
			list = append(list, info)
		}
	}
	slices.SortStableFunc(list, func(x, y session.Info) int { return x.Created.Compare(y.Created) })
	return list, err
}

// StateRemoved is the state of a sandbox of which only the record is left.
const StateRemoved session.State = "removed"

// SandboxView is a sandbox for the command and the page.
type SandboxView struct {
	ID string `json:"id"`
	// For sandboxes of `sandbox open`; random unless set with --name.
	Name     string `json:"name,omitempty"`
	UserName string `json:"user_name,omitempty"` // user that owns the sandbox
	Key      string `json:"key"`
	Run      string `json:"run,omitempty"`
	State    string `json:"state"`          // created, running, stopped, kept, removing, lost or removed
	Ends     string `json:"ends,omitempty"` // when the sandbox ends, together with its processes
	// reason for its end: removed, idle, run ended, owner died or engine lost.
	Reason  string              `json:"reason,omitempty"`
	Image   string              `json:"image"`
	User    string              `json:"user"`
	Network backend.NetworkMode `json:"network"`
	Mounts  []backend.Mount     `json:"mounts,omitempty"`
	Limits  backend.Limits      `json:"limits"`
	// Workspace is the mechanism that limits the workspace.
	Workspace backend.Enforcement `json:"workspace,omitempty"`
	// RootBytes is the space outside of the workspace, if the root file system is writable. RootEnforcement is the
	// mechanism that limits it.
	RootBytes       int64               `json:"root_bytes,omitempty"`
	RootEnforcement backend.Enforcement `json:"root_enforcement,omitempty"`
	Created         time.Time           `json:"created"`
	Backend         string              `json:"backend"`
	EngineID        string              `json:"engine_id"`
	Isolation       backend.Isolation   `json:"isolation,omitempty"`
	Policy          string              `json:"policy,omitempty"` // SHA-256 of the settings

	IdlePolicy record.IdlePolicy `json:"idle_policy,omitempty"`
}

// ViewSandbox returns the view of a sandbox. left are the records of sandboxes without a process.
func ViewSandbox(i session.Info, left ...record.Record) SandboxView {
	name := ""
	if IsNamed(i.Key) {
		name = i.Key.ID
	}
	policy := ""
	if i.Isolation != "" { // else only a record is left
		policy = i.Settings().Digest()
	}
	return SandboxView{
		ID: i.ID, Name: name, UserName: i.Key.User(), Key: i.Key.String(), Run: i.Run,
		State: cmp.Or(stateWords[i.State], string(i.State)),
		Ends:  Ends(i, left), Reason: i.Reason, Image: i.Image, User: i.User, Network: i.Network, Mounts: i.Mounts,
		Limits: i.Limits, Workspace: i.Workspace, RootBytes: i.RootBytes, RootEnforcement: i.RootEnforcement,
		Created: i.Created, Backend: i.Backend, EngineID: i.EngineID, Isolation: i.Isolation, Policy: policy,
		IdlePolicy: i.IdlePolicy,
	}
}

// Ends returns when a sandbox ends, together with its background processes. left are the records of sandboxes without a
// process.
func Ends(i session.Info, left []record.Record) string {
	for _, rec := range left {
		if rec.ID == i.ID {
			return EndsWithoutOwner(rec)
		}
	}
	if i.State != session.StateReady {
		return ""
	}
	what := map[string]string{
		record.NamespaceUser: "when removed", record.NamespaceWorkflow: "with its run",
		record.NamespaceAgent: "with its agent", record.NamespaceMCP: "with its client",
	}[i.Key.Namespace]
	idle := " after " + Age(i.IdleTimeout) + " idle"
	switch {
	case i.IdleTimeout <= 0:
		return what
	case i.IdlePolicy == record.IdleStop:
		return "stops" + idle
	}
	return what + ", or" + idle
}

// EndsWithoutOwner returns when the cleanup stops or removes a recorded sandbox or its files.
func EndsWithoutOwner(rec record.Record) string {
	at, _ := admin.ReclaimAt(rec, time.Now())
	wait, running := time.Until(at), rec.State == record.Ready && !rec.WorkspaceOnly()
	when := "in " + Age(wait)
	switch {
	case at.IsZero():
		return "when removed"
	case wait <= 0 && !running:
		return "at the next cleanup"
	case wait <= 0: // running processes count as use
		when = "when idle"
	}
	if rec.IdlePolicy == record.IdleStop && running {
		return "stops " + when
	}
	return when
}

// stateWords are the texts of states, independent of the owner. The text of other states is the state.
var stateWords = map[session.State]string{session.StateReady: "running", session.StateClosed: "removing"}

// ExecView is a command in a sandbox, for the command and the page.
type ExecView struct {
	ExecID     string            `json:"exec_id"`
	Status     sandbox.ExecState `json:"status"`
	ExitCode   *int              `json:"exit_code,omitempty"` // absent while it runs, and if a signal killed it
	Signal     string            `json:"signal,omitempty"`
	DurationMS int64             `json:"duration_ms"` // so far, if it is running
	// Time since the start; absent if unknown.
	AgeMS       int64 `json:"age_ms,omitempty"`
	Terminal    bool  `json:"terminal,omitempty"` // `sandbox attach` can connect to it
	StdoutBytes int64 `json:"stdout_bytes"`
	StderrBytes int64 `json:"stderr_bytes"`
}

// OutputFile is a file in a sandbox with the whole output of a command.
type OutputFile struct {
	Name string // stdout or stderr
	Path string
	Size int64
}

// OutputFiles returns the existing files with the output of a command.
func OutputFiles(ctx context.Context, s *session.Session, execID string) (list []OutputFile) {
	for _, name := range []string{"stdout", "stderr"} {
		path := ".workcell/output/" + execID + "." + name
		if info, err := s.StatFile(ctx, path); err == nil {
			list = append(list, OutputFile{name, path, info.Size})
		}
	}
	return list
}

// Execs returns the commands in a sandbox.
func Execs(ctx context.Context, s *session.Session) ([]ExecView, error) {
	known, err := s.Commands(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]ExecView, len(known))
	for i, st := range known {
		list[i] = ExecView{
			ExecID: st.ExecID, Status: st.Status, Signal: st.Signal, DurationMS: st.Duration.Milliseconds(),
			AgeMS: st.Age.Milliseconds(), Terminal: st.Terminal,
			StdoutBytes: st.StdoutBytes, StderrBytes: st.StderrBytes,
		}
		if st.Done() && st.Signal == "" {
			list[i].ExitCode = &st.ExitCode
		}
	}
	return list, nil
}
