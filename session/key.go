package session

import "github.com/workcell-dev/workcell/session/record"

// Key names a sandbox. See package record.
type Key = record.Key

// WorkflowKey names a sandbox of a workflow run.
func WorkflowKey(runID, name string) Key { return record.WorkflowKey(runID, name) }

// UserKey names a sandbox without a run.
func UserKey(name string) Key { return record.UserKey(name) }

// NewRunID returns the id of a new run.
func NewRunID() string { return record.NewRunID() }

// seals reports whether closing a scope is final. Runs end only once, but a named sandbox can be opened again.
func seals(s record.Scope) bool { return s.Namespace != record.NamespaceUser }
