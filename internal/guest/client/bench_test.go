//go:build linux

package client_test

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func BenchmarkRunTrue(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	for b.Loop() {
		req := sh("")
		req.Argv = []string{"/bin/true"}
		if _, err := c.Run(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHostTrue(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRunTrue16(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			req := sh("")
			req.Argv = []string{"/bin/true"}
			if _, err := c.Run(ctx, req); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkHealth(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	for b.Loop() {
		if _, err := c.Wait(ctx, wire.WaitRequest{ExecID: "nope"}); err == nil {
			b.Fatal("no error")
		}
	}
}
func BenchmarkFile1K(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	data := make([]byte, 1024)
	for b.Loop() {
		if _, err := c.PutFile(ctx, wire.FilePutRequest{Path: "x", Size: 1024, Overwrite: true}, bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
		if _, err := c.GetFile(ctx, wire.FileGetRequest{Path: "x", Length: -1}, io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
func BenchmarkFile100MPut(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	data := make([]byte, 100<<20)
	b.SetBytes(100 << 20)
	for b.Loop() {
		if _, err := c.PutFile(ctx, wire.FilePutRequest{Path: "x", Size: 100 << 20, Overwrite: true}, bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
	h, err := c.Health(ctx)
	b.Logf("%+v %v", h, err)
}
func BenchmarkFile100MGet(b *testing.B) {
	_, c := start(b)
	ctx := context.Background()
	data := make([]byte, 100<<20)
	if _, err := c.PutFile(ctx, wire.FilePutRequest{Path: "x", Size: 100 << 20, Overwrite: true}, bytes.NewReader(data)); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(100 << 20)
	for b.Loop() {
		if _, err := c.GetFile(ctx, wire.FileGetRequest{Path: "x", Length: -1}, io.Discard); err != nil {
			b.Fatal(err)
		}
	}
	h, err := c.Health(ctx)
	b.Logf("%+v %v", h, err)
}
