// Package output handles the output of commands. It records the output in bounded memory, writes it to spill files, and
// sends it to connected hosts.
//
// The package is Linux only. It is empty on other systems.
package output
