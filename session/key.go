package session

import "github.com/workcell-dev/workcell/session/record"

// Key names a sandbox; see package record.
type Key = record.Key

// WorkflowKey names a sandbox of a workflow run.
func WorkflowKey(runID, name string) Key { return record.WorkflowKey(runID, name) }

// UserKey names a sandbox that belongs to no run.
func UserKey(name string) Key { return record.UserKey(name) }

// NewRunID returns the id of a new run.
func NewRunID() string { return record.NewRunID() }

// seals reports whether closing a scope is for good. Runs end once; a named sandbox may be opened again.
func seals(s record.Scope) bool { return s.Namespace != record.NamespaceUser }
