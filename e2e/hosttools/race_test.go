//go:build race

package hosttools

// shadow is the memory factor of the race detector.
const shadow = 8
