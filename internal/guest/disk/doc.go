// Package disk limits the data written by commands: to the workspace, and to the root file system on top of the image.
//
// The package is Linux only. It is empty on other systems.
package disk
