// Package proc starts and ends the commands of a guest agent. It implements fork and exec with limits, the shared tag
// of all processes of a command, the killing of process trees, the protection of the guest agent from commands, and
// standard input.
//
// It assumes hostile commands, run by the guest agent's user.
//
// The package is Linux only. It is empty on other systems.
package proc
