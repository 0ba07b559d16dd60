//go:build ignore

// Pack compresses standard input to standard output. The result is reproducible for the same input and toolchain.
package main

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := pack(os.Stdout, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func pack(w io.Writer, r io.Reader) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := io.Copy(z, r); err != nil {
		return err
	}
	return z.Close()
}
