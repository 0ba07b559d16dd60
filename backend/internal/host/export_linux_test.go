package host

// IsApart is isApart.
func IsApart(p Processes) bool { return p.isApart() }

// InGroup returns the processes of a control group of version 2.
func InGroup(dir string) Processes { return Processes{group: dir, v2: true} }
