package main

import "os/exec"

// canReap: there are no reapers on Windows. A program that runs cannot be replaced there, which a process that nobody sees
// would be in the way of.
const canReap = false

func detach(*exec.Cmd) error { return nil }

func makeNice(int) {}
