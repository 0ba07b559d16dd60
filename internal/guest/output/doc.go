// Package output takes what commands write: it is recorded in bounded memory, kept in spill files and sent to the hosts
// that look on.
//
// The package is Linux only; on other systems it is empty.
package output
