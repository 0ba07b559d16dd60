// Package files handles a host's file requests. Every path stays inside the root, even if commands change the path
// concurrently.
//
// The package is Linux only. It is empty on other systems.
package files
