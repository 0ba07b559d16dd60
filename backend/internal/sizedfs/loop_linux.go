package sizedfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Device is a loop device over a file. It goes when it is closed and nothing is mounted from it.
type Device struct {
	Path string // "/dev/loop3"
	f    *os.File
}

// Close lets go of the device.
func (d *Device) Close() error { return d.f.Close() }

// attachBound is how long a free device is looked for while others take them.
const attachBound = 10 * time.Second

// Attach returns a loop device over file: one that is there, because the file is still mounted, or a new one. Two
// devices over one file would destroy what is in it. The caller must be the only one who attaches this file at a time.
func Attach(file string) (*Device, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if d := find(&st); d != nil {
		return d, nil
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices: %w", err)
	}
	defer control.Close()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		d, err := attachFree(int(control.Fd()), f)
		if !errors.Is(err, unix.EBUSY) || time.Since(begin) > attachBound { // somebody else took it
			return d, err
		}
	}
}

func attachFree(control int, f *os.File) (*Device, error) {
	n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("finding a loop device: %w", err)
	}
	path := fmt.Sprintf("/dev/loop%d", n)
	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) { // a /dev that the kernel does not keep
		if err = unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n)))); err == nil || errors.Is(err, unix.EEXIST) {
			dev, err = os.OpenFile(path, os.O_RDWR, 0)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("opening a loop device: %w", err)
	}
	// In one step, so that no death of this process leaves a device that does not release itself.
	config := unix.LoopConfig{Fd: uint32(f.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &config); err != nil {
		_ = dev.Close() // only opened
		return nil, fmt.Errorf("setting up a loop device: %w", err)
	}
	return &Device{path, dev}, nil
}

// find returns the device that a file has already; nil for none.
func find(file *unix.Stat_t) *Device {
	bound, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return nil
	}
	for _, b := range bound {
		path := filepath.Join("/dev", filepath.Base(filepath.Dir(b)))
		dev, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue // gone, or not ours to see
		}
		// While it is open it stays what it is.
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Inode == file.Ino && info.Device == file.Dev && info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0 {
			return &Device{path, dev}
		}
		_ = dev.Close() // only looked at
	}
	return nil
}
