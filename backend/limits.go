package backend

import (
	"cmp"
	"fmt"
)

// Limits are the resource limits of one sandbox. Sizes are in bytes. In a Spec, a zero field means the driver's
// default, see LimitTable. Only Clamp treats a zero field as unlimited.
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

// Limit is a row of the limit table. Min, Max, and Default use the same unit as the field in Limits.
type Limit struct {
	Name              string // name in configuration files and schemas, for example "memory_mb"
	Unit              string // "MiB", or the counted objects
	Scale             int64  // size of one unit in the field of Limits
	Min, Max, Default int64  // if Default is zero, no default limit applies
	What              string // description for display

	field func(*Limits) *int64
}

// LimitTable returns the name, unit, bounds, and default of each limit. All code and documentation takes these values
// from this table.
func LimitTable() []Limit {
	return []Limit{
		{"cpu_millicores", "thousandths of a core", 1, 10, 1 << 20, 1000, "CPU time",
			func(l *Limits) *int64 { return &l.CPUMillis }},
		{"memory_mb", "MiB", mib, 16 * mib, 4 << 20 * mib, 2048 * mib, "memory and swap together",
			func(l *Limits) *int64 { return &l.MemoryBytes }},
		// With fewer processes, a sandbox cannot accept connections.
		{"pids", "processes and threads", 1, 16, 4 << 20, 256, "processes and threads, without the guest agent's",
			func(l *Limits) *int64 { return &l.PIDs }},
		{"tmp_mb", "MiB", mib, 4096, 4 << 20 * mib, 256 * mib, "size of /tmp, which counts against memory",
			func(l *Limits) *int64 { return &l.TmpBytes }},
		{"shm_mb", "MiB", mib, mib, 4 << 20 * mib, 0, "size of /dev/shm, part of the memory (default: a quarter)",
			func(l *Limits) *int64 { return &l.ShmBytes }},
		{"workspace_mb", "MiB", mib, 64 << 10, 16 << 20 * mib, 500 * mib, "size of the workspace",
			func(l *Limits) *int64 { return &l.WorkspaceBytes }},
		{"open_files", "files", 1, 16, 1 << 20, 16384, "open files of a process",
			func(l *Limits) *int64 { return &l.OpenFiles }},
		{"file_bytes", "bytes", 1, 1, 1 << 60, 0, "size of a file that a command writes",
			func(l *Limits) *int64 { return &l.FileBytes }},
	}
}

// LimitNamed returns the row with this name. It panics if the table has no such row.
func LimitNamed(name string) Limit {
	for _, row := range LimitTable() {
		if row.Name == name {
			return row
		}
	}
	panic("backend: unknown limit " + name) // a bug in the caller
}

// Of returns a pointer to the row's field of l.
func (row Limit) Of(l *Limits) *int64 { return row.field(l) }

// Bounds returns the smallest and the largest allowed value in the limit's unit.
func (row Limit) Bounds() (least, most int64) {
	return (row.Min + row.Scale - 1) / row.Scale, row.Max / row.Scale
}

// LimitError describes an out-of-bounds limit. It wraps ErrInvalid.
type LimitError struct {
	Limit Limit
	Value int64 // value of the field in Limits
}

// Error returns one line. The line uses the limit's unit if the value is a multiple of the unit.
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

// Validate returns a LimitError for the first out-of-bounds limit. Zero fields are valid.
func (l Limits) Validate() error {
	for _, row := range LimitTable() {
		if v := *row.field(&l); v != 0 && (v < row.Min || v > row.Max) {
			return &LimitError{row, v}
		}
	}
	return nil
}

// Fit returns l with smaller sizes of /tmp and /dev/shm, unless asked contains these sizes, to leave memory for
// programs. Even if a command has filled both, enough memory is left for a command to delete the files.
func (l Limits) Fit(asked Limits) Limits {
	if asked.TmpBytes == 0 {
		l.TmpBytes = min(l.TmpBytes, max(mib, (l.MemoryBytes-asked.ShmBytes)/2))
	}
	if asked.ShmBytes == 0 {
		l.ShmBytes = min(cmp.Or(l.ShmBytes, max(l.MemoryBytes/4, 64*mib)), (l.MemoryBytes-l.TmpBytes)/2)
	}
	return l
}

// Merge returns a copy of l in which the values of base replace zero fields.
func (l Limits) Merge(base Limits) Limits {
	for _, row := range LimitTable() {
		if v := row.field(&l); *v == 0 {
			*v = *row.field(&base)
		}
	}
	return l
}

// Clamp returns a copy of l in which no field exceeds the same field of ceiling. A zero field of ceiling sets no
// maximum. A zero field of l becomes the maximum. To keep a lower default, call Merge before Clamp.
func (l Limits) Clamp(ceiling Limits) Limits {
	for _, row := range LimitTable() {
		v, most := row.field(&l), *row.field(&ceiling)
		if most > 0 && (*v == 0 || *v > most) {
			*v = most
		}
	}
	return l
}

// DefaultLimits returns the limits of a sandbox if neither the caller nor the driver's options set any. For the default
// workspace size, a driver may use weaker enforcement than for a requested size.
func DefaultLimits() Limits {
	var l Limits
	for _, row := range LimitTable() {
		*row.field(&l) = row.Default
	}
	return l
}
