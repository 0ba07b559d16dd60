// Package layers holds the test that keeps imports pointing downwards. It
// reads the sources, so it sees every platform's files and needs no build.
package layers
