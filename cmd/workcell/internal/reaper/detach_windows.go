package reaper

import "os/exec"

// Supported reports that there are no reapers on Windows. A program that runs cannot be replaced there, and a process
// that nobody sees would keep it from being.
const Supported = false

func detach(*exec.Cmd) error { return nil }

func makeNice(int) {}
