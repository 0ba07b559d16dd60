package host

// InGroup returns the Processes of a sandbox whose control group is dir, of version 2.
func InGroup(pid int, dir string) Processes { return Processes{PID: pid, group: dir, v2: true} }
