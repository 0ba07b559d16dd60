//go:build race

package hosttools

// shadow is how many times as much memory the race detector takes as a program without it.
const shadow = 8
