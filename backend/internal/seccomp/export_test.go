package seccomp

// Instructions returns the filter in a form for the virtual machine of package bpf.
var Instructions = instructions
