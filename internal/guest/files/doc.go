// Package files serves a host's requests about files. Every path stays inside its root, whatever commands do to it.
//
// The package is Linux only; on other systems it is empty.
package files
