//go:build linux

package sizedfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend/internal/sizedfs"
)

// newDisk creates and mounts a small disk. options are additional options of mkfs.ext4.
func newDisk(t *testing.T, bytes int64, options ...string) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	must(t, errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, bytes)))
	if out, err := exec.Command("/sbin/mkfs.ext4", append(options, "-q", "-F", "-E", "nodiscard", image)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return mount(t, image, "")
}

// mount mounts a file until the end of the test.
func mount(t *testing.T, image, options string) string {
	t.Helper()
	d, err := sizedfs.Attach(image)
	must(t, err)
	at := t.TempDir()
	must(t, errors.Join(unix.Mount(d.Name(), at, "ext4", unix.MS_NODEV|unix.MS_NOSUID, options), d.Close()))
	t.Cleanup(func() { unmount(t, at) })
	return at
}

// unmount unmounts a directory. If a concurrently started process still holds its files, unmount retries.
func unmount(t *testing.T, at string) {
	t.Helper()
	err := unix.Unmount(at, 0)
	for end := time.Now().Add(time.Minute); errors.Is(err, unix.EBUSY) && time.Now().Before(end); err = unix.Unmount(at, 0) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: already unmounted
		t.Error(err)
	}
}

// fill uses all free blocks of a disk.
func fill(t *testing.T, disk string) {
	t.Helper()
	f, err := os.Create(filepath.Join(disk, "filler"))
	must(t, err)
	for _, size := range []int{1 << 20, 1 << 10} {
		for err = nil; err == nil; {
			if _, err = f.Write(make([]byte, size)); err == nil {
				err = f.Sync()
			}
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	_ = f.Close() // the successful writes were flushed above
}

// noise returns the expected contents of block n in a test.
func noise(n int, size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), 1}).Read(b) // never fails
	return b
}

// durable writes a file of blocks in random order and flushes it repeatedly.
func durable(t *testing.T, name string, blocks, size int) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	defer f.Close() // a failure must not prevent the disk from being unmounted
	for i, n := range rand.Perm(blocks) {
		if _, err = f.WriteAt(noise(n, size), int64(n*size)); err == nil && i%128 == 0 {
			err = f.Sync()
		}
		if err != nil {
			t.Fatalf("%s, write %d of %d: %v", filepath.Base(name), i, blocks, err)
		}
	}
	must(t, f.Sync())
}

func holds(t *testing.T, name string, blocks, size int) {
	t.Helper()
	got, err := os.ReadFile(name)
	if err != nil || len(got) != blocks*size {
		t.Fatalf("%s: %d bytes, %v", filepath.Base(name), len(got), err)
	}
	for n := range blocks {
		if !bytes.Equal(got[n*size:(n+1)*size], noise(n, size)) {
			t.Fatalf("%s: block %d differs from the written block", filepath.Base(name), n)
		}
	}
}

// TestFullDisk verifies that a file system loses no writes and can be filled completely even if other files fill the
// disk below it. It also verifies that Format and Probe return ENOSPC on the full disk.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int64{"small blocks": 12 << 20, "large blocks": 64 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := newDisk(t, size+size/2+24<<20)
			image := filepath.Join(disk, "image")
			must(t, sizedfs.Format(t.Context(), image, sizedfs.Spec{Bytes: size, Files: 1000}))
			at := mount(t, image, sizedfs.Options)
			const block = 5000
			few, most := 300, int(size*9/10/block)-300
			durable(t, filepath.Join(at, "before"), few, block)
			fill(t, disk)
			durable(t, filepath.Join(at, "after"), most/4, block)
			must(t, os.Remove(filepath.Join(at, "after")))
			durable(t, filepath.Join(at, "again"), most, block)
			unmount(t, at)
			at = mount(t, image, sizedfs.Options)
			holds(t, filepath.Join(at, "before"), few, block)
			holds(t, filepath.Join(at, "again"), most, block)

			before := names(t, disk)
			if err := sizedfs.Format(t.Context(), filepath.Join(disk, "more"), sizedfs.Spec{Bytes: 4 << 20, Files: 16}); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("Format on the full disk = %v, want ENOSPC", err)
			}
			if err := sizedfs.Probe(t.Context(), disk); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("Probe on the full disk = %v, want ENOSPC", err)
			}
			if after := names(t, disk); after != before {
				t.Errorf("there were %s and are %s", before, after)
			}
		})
	}
}

// names returns the names in a directory.
func names(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

// TestKeptFree verifies that Format leaves the reserve of the disk free, even if the file itself would fit.
func TestKeptFree(t *testing.T) {
	t.Parallel()
	disk := newDisk(t, 64<<20)
	var before, after unix.Statfs_t
	must(t, unix.Statfs(disk, &before))
	made := 0
	for ; ; made++ {
		err := sizedfs.Format(t.Context(), filepath.Join(disk, fmt.Sprint(made)), sizedfs.Spec{Bytes: 4 << 20, Files: 16})
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		must(t, err)
	}
	if err := unix.Statfs(disk, &after); err != nil || after.Bavail < before.Blocks/50 || made == 0 {
		t.Errorf("%d were made and %d of %d blocks are free, %v", made, after.Bavail, before.Blocks, err)
	}
}

// TestUnreserved verifies that Probe fails on a disk without support for reserving space.
func TestUnreserved(t *testing.T) {
	t.Parallel()
	disk := newDisk(t, 64<<20, "-O", "^extent,^64bit")
	if err := sizedfs.Probe(t.Context(), disk); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("Probe = %v, want EOPNOTSUPP", err)
	}
}
