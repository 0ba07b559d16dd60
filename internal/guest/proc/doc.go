// Package proc starts the commands of a guest and ends them: fork and exec with limits, the tag that all processes of a
// command share, their end, what keeps the guest safe from them, and their standard input.
//
// It assumes that commands are hostile and run as the guest's own user.
//
// The package is Linux only; on other systems it is empty.
package proc
