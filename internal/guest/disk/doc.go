// Package disk limits the data that commands write: to the workspace, and to the root file system on top of the image.
//
// The package is Linux only. It is empty on other systems.
package disk
