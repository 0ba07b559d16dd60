package reaper

import "os/exec"

// Supported is false, because Windows does not support reapers. The file of a running program cannot be replaced there,
// so an invisible process would prevent updates.
const Supported = false

func detach(*exec.Cmd) error { return nil }

func makeNice(int) {}
