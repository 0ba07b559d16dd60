package backend

import (
	"cmp"
	"fmt"
)

// Limits bound one sandbox. A zero field means the driver's default, see LimitTable.
type Limits struct {
	CPUMillis      int64 `json:"cpu_millicores,omitempty"`
	MemoryBytes    int64 `json:"memory_bytes,omitempty"`
	PIDs           int64 `json:"pids,omitempty"`
	TmpBytes       int64 `json:"tmp_bytes,omitempty"`
	ShmBytes       int64 `json:"shm_bytes,omitempty"`
	WorkspaceBytes int64 `json:"workspace_bytes,omitempty"`
	OpenFiles      int64 `json:"open_files,omitempty"`
	FileBytes      int64 `json:"file_bytes,omitempty"`
}

const mib = 1 << 20

// Limit is a row of the table of limits. Min, Max and Default are values of the field of Limits.
type Limit struct {
	Name              string // as files and schemas call it, in its unit: "memory_mb"
	Unit              string // "MiB", or what is counted
	Scale             int64  // of one unit in the field of Limits
	Min, Max, Default int64  // a Default of zero: there is none
	What              string // what it bounds, for people

	field func(*Limits) *int64
}

// LimitTable returns what is known of each limit: its name, unit, bounds and default. It is the only place where they
// stand.
func LimitTable() []Limit {
	return []Limit{
		{"cpu_millicores", "thousandths of a core", 1, 10, 1 << 20, 1000, "CPU time", func(l *Limits) *int64 { return &l.CPUMillis }},
		{"memory_mb", "MiB", mib, 16 * mib, 4 << 20 * mib, 2048 * mib, "memory and swap together", func(l *Limits) *int64 { return &l.MemoryBytes }},
		// With fewer a sandbox has no room for who connects to it.
		{"pids", "processes and threads", 1, 16, 4 << 20, 256, "processes and threads, without the guest agent's", func(l *Limits) *int64 { return &l.PIDs }},
		{"tmp_mb", "MiB", mib, 4096, 4 << 20 * mib, 256 * mib, "size of /tmp, which counts against memory", func(l *Limits) *int64 { return &l.TmpBytes }},
		{"shm_mb", "MiB", mib, mib, 4 << 20 * mib, 0, "size of /dev/shm, part of the memory (default: a quarter)",
			func(l *Limits) *int64 { return &l.ShmBytes }},
		{"workspace_mb", "MiB", mib, 64 << 10, 16 << 20 * mib, 500 * mib, "size of the workspace", func(l *Limits) *int64 { return &l.WorkspaceBytes }},
		{"open_files", "files", 1, 16, 1 << 20, 16384, "open files of a process", func(l *Limits) *int64 { return &l.OpenFiles }},
		{"file_bytes", "bytes", 1, 1, 1 << 60, 0, "size of a file that a command writes", func(l *Limits) *int64 { return &l.FileBytes }},
	}
}

// LimitNamed returns the row of a name, which must be in the table.
func LimitNamed(name string) Limit {
	for _, row := range LimitTable() {
		if row.Name == name {
			return row
		}
	}
	panic("backend: unknown limit " + name) // a bug of the caller
}

// Of returns the limit's field of l.
func (row Limit) Of(l *Limits) *int64 { return row.field(l) }

// Bounds returns the least and the largest value in the limit's unit.
func (row Limit) Bounds() (least, most int64) {
	return (row.Min + row.Scale - 1) / row.Scale, row.Max / row.Scale
}

// LimitError is a limit that is out of bounds. It wraps ErrInvalid.
type LimitError struct {
	Limit Limit
	Value int64 // of the field
}

// Error returns one line, in the limit's unit where the value has one.
func (e *LimitError) Error() string {
	least, most := e.Limit.Bounds()
	name, value := e.Limit.Name, e.Value/e.Limit.Scale
	if e.Value%e.Limit.Scale != 0 {
		name, value, least, most = name+" in bytes", e.Value, e.Limit.Min, e.Limit.Max
	}
	return fmt.Sprintf("%s must be %d to %d, not %d: %v", name, least, most, value, ErrInvalid)
}

// Unwrap returns ErrInvalid.
func (e *LimitError) Unwrap() error { return ErrInvalid }

// Validate returns a LimitError for the first limit that is out of bounds. Zero fields are fine.
func (l Limits) Validate() error {
	for _, row := range LimitTable() {
		if v := *row.field(&l); v != 0 && (v < row.Min || v > row.Max) {
			return &LimitError{row, v}
		}
	}
	return nil
}

// Fit returns l with sizes of /tmp and /dev/shm that leave memory for programs, unless asked contains these sizes. If a
// command has filled both, the sandbox still has enough memory for a command that deletes the files.
func (l Limits) Fit(asked Limits) Limits {
	if asked.TmpBytes == 0 {
		l.TmpBytes = min(l.TmpBytes, max(mib, (l.MemoryBytes-asked.ShmBytes)/2))
	}
	if asked.ShmBytes == 0 {
		l.ShmBytes = min(cmp.Or(l.ShmBytes, max(l.MemoryBytes/4, 64*mib)), (l.MemoryBytes-l.TmpBytes)/2)
	}
	return l
}

// Merge returns l with its zero fields taken from base.
func (l Limits) Merge(base Limits) Limits {
	for _, row := range LimitTable() {
		if v := row.field(&l); *v == 0 {
			*v = *row.field(&base)
		}
	}
	return l
}

// Clamp returns l with no field above that of ceiling, where that is not zero. A zero field of l is anything, so it is
// above too.
func (l Limits) Clamp(ceiling Limits) Limits {
	for _, row := range LimitTable() {
		v, most := row.field(&l), *row.field(&ceiling)
		if most > 0 && (*v == 0 || *v > most) {
			*v = most
		}
	}
	return l
}

// DefaultLimits returns the limits of a sandbox that neither the caller nor the driver's options limit. A
// driver may hold its workspace by a weaker enforcement than one whose size was asked for.
func DefaultLimits() Limits {
	var l Limits
	for _, row := range LimitTable() {
		*row.field(&l) = row.Default
	}
	return l
}
