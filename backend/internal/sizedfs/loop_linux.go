package sizedfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// attachBound is the maximum time to search for a free device while other programs take free devices.
const attachBound = 10 * time.Second

// Attach returns an open loop device for file, for example /dev/loop3. It returns the existing device if the file is
// still mounted, and a new device otherwise. Two devices for one file would destroy the contents, so only one caller at
// a time may attach this file. The kernel releases the device when it is closed and not mounted.
func Attach(file string) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if d, err := find(&st); d != nil || err != nil {
		return d, err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices: %w", err)
	}
	defer control.Close()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		d, err := attachFree(int(control.Fd()), f)
		if !errors.Is(err, unix.EBUSY) || time.Since(begin) > attachBound { // another program took the device
			return d, err
		}
	}
}

func attachFree(control int, f *os.File) (*os.File, error) {
	n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("finding a loop device: %w", err)
	}
	path := fmt.Sprintf("/dev/loop%d", n)
	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) { // /dev is not a devtmpfs
		err = unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n))))
		if err == nil || errors.Is(err, unix.EEXIST) {
			dev, err = os.OpenFile(path, os.O_RDWR, 0)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("opening a loop device: %w", err)
	}
	// LoopConfigure sets up the device and LO_FLAGS_AUTOCLEAR in one step. If this process dies, the device always
	// releases itself.
	config := unix.LoopConfig{Fd: uint32(f.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &config); err != nil {
		_ = dev.Close() // only opened
		return nil, fmt.Errorf("setting up a loop device: %w", err)
	}
	return dev, nil
}

// find returns the file's existing device, or nil. It opens devices only for reading, because udev examines a device
// after a writer closed it.
func find(file *unix.Stat_t) (*os.File, error) {
	bound, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return nil, err
	}
	for _, b := range bound {
		dev, err := os.Open(filepath.Join("/dev", filepath.Base(filepath.Dir(b))))
		var info *unix.LoopInfo64
		if err == nil { // while the device is open, the backing file cannot change
			info, err = unix.IoctlLoopGetStatus64(int(dev.Fd()))
		}
		if err == nil && info.Inode == file.Ino && info.Device == file.Dev && info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0 {
			return dev, nil
		}
		_ = dev.Close() // only read, or nil
		// In other cases, the device is released, or belongs to another file.
		if err != nil && backs(filepath.Join(b, "backing_file"), file) {
			return nil, fmt.Errorf("opening the loop device of a mounted file: %w", err)
		}
	}
	return nil, nil
}

// backs reports whether the path in a file of /sys belongs to the file.
func backs(attribute string, file *unix.Stat_t) bool {
	path, err := os.ReadFile(attribute)
	if err != nil {
		return false // released
	}
	var st unix.Stat_t
	err = unix.Stat(strings.TrimSuffix(string(path), "\n"), &st)
	return err == nil && st.Ino == file.Ino && st.Dev == file.Dev
}
