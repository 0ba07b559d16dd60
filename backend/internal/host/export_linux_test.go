package host

// IsApart is isApart.
func IsApart(p Processes) bool { return p.isApart() }
