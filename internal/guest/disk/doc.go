// Package disk bounds what commands write: to the workspace, and to the root file system over what the image has.
//
// The package is Linux only; on other systems it is empty.
package disk
