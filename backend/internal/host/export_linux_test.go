package host

// InGroup returns the processes of a sandbox in a control group of version 2.
func InGroup(pid int, dir string) Processes { return Processes{PID: pid, group: dir, v2: true} }
