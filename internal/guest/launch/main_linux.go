package launch

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Error returns the part and what failed.
func (r *Report) Error() string { return r.Isolation + ": " + r.What }

// failed returns a *Report of a failure to build a part of the isolation; nil for no failure.
func failed(part, what string, err error) error {
	if err == nil {
		return nil
	}
	r := &Report{Isolation: part, What: what}
	var errno unix.Errno
	if errors.As(err, &errno) {
		r.Errno = int(errno)
	} else {
		r.What += ": " + err.Error()
	}
	return r
}

// Main is the launcher. It returns only when it failed, or when there is no guest to become, with the exit code.
func Main() int {
	// Namespaces, privileges and filters are a thread's own; executing the guest from this one makes them the process's.
	runtime.LockOSThread()
	// The file of the program cannot be read; without this the launcher could not write to its own /proc.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return tell(failed(IsolationConfig, "becoming dumpable", err))
	}
	// Whatever else the host's program left open must not get anywhere.
	if err := unix.CloseRange(ListenerFD+1, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return tell(failed(IsolationConfig, "closing descriptors", err))
	}
	unix.CloseOnExec(ConfigFD)
	unix.CloseOnExec(StatusFD)
	cfg, input, err := readConfig()
	if err != nil {
		return tell(failed(IsolationConfig, "reading it", err))
	}
	if err := build(cfg, input); err != nil {
		return tell(err)
	}
	if len(cfg.Argv) == 0 {
		return tell(nil)
	}
	return tell(become(cfg))
}

// readConfig reads up to the configuration's end, which may not be that of the stream.
func readConfig() (*Config, io.Reader, error) {
	in := os.NewFile(ConfigFD, "config")
	dec := json.NewDecoder(in)
	cfg := new(Config)
	if err := dec.Decode(cfg); err != nil {
		return nil, nil, err
	}
	return cfg, io.MultiReader(dec.Buffered(), in), nil
}

// tell reports a failure, or success for nil.
func tell(err error) int {
	r, code := new(Report), 0
	if err != nil {
		code = 1
		if !errors.As(err, &r) {
			r = &Report{Isolation: IsolationConfig, What: err.Error()}
		}
	}
	b, err := json.Marshal(r)
	if err == nil {
		_, err = unix.Write(StatusFD, b)
	}
	if err != nil { // nobody is there to hear
		return 1
	}
	return code
}

// build builds the isolation, in the order in which the next one still can be built.
func build(cfg *Config, input io.Reader) error {
	if err := buildFiles(cfg); err != nil {
		return err
	}
	if err := loopback(); err != nil {
		return failed(IsolationNetwork, "switching on the loopback interface", err)
	}
	if err := unix.Sethostname([]byte(cfg.Hostname)); err != nil {
		return failed(IsolationMounts, "naming the host", err)
	}
	if _, err := io.ReadFull(input, make([]byte, 1)); err != nil {
		return failed(IsolationConfig, "waiting for the host", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return failed(IsolationCgroup, "making it", err)
	}
	if err := setLimits(cfg.Rlimits); err != nil {
		return err
	}
	return harden(cfg)
}

// become executes the guest.
func become(cfg *Config) error {
	// The standard input and output are devices of the host's; what the guest gets are the sandbox's own.
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Dup3(null, 0, 0), unix.Dup3(null, 1, 0), unix.Dup3(ListenerFD, ListenFD, 0))
	}
	if err != nil {
		return failed(IsolationGuest, "arranging descriptors", err)
	}
	if tell(nil) != 0 {
		return errors.New("the host is gone")
	}
	return failed(IsolationGuest, "executing it", execGuest(cfg))
}

// execGuest executes the guest. One that was installed just now may still be held open for writing, for a moment, by
// another process that the host has forked and that has not executed its own yet.
func execGuest(cfg *Config) error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := unix.Exec(cfg.Argv[0], cfg.Argv, cfg.Env)
		if !errors.Is(err, unix.ETXTBSY) || pause > time.Second {
			return err
		}
		time.Sleep(pause)
	}
}
