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

// Error returns the part and the failed operation.
func (r *Report) Error() string { return r.Isolation + ": " + r.What }

// failed returns a *Report for a failure to build a part of the isolation, or nil if err is nil.
func failed(part, what string, err error) error {
	if err == nil {
		return nil
	}
	r := &Report{Isolation: part, What: what}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		r.Errno = int(errno)
	} else {
		r.What += ": " + err.Error()
	}
	return r
}

// Main runs the launcher. It only returns, with the exit code, if it failed or if no guest agent is configured.
func Main() int {
	// Namespaces, privileges, and filters belong to this thread. Executing the guest agent makes them apply to the whole
	// process.
	runtime.LockOSThread()
	// The program's file is not readable. Without this call, the launcher could not write to /proc/self.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return tell(failed(IsolationConfig, "becoming dumpable", err))
	}
	// Other open descriptors of the host process must not reach the sandbox.
	if err := unix.CloseRange(listenerFD+1, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return tell(failed(IsolationConfig, "closing descriptors", err))
	}
	unix.CloseOnExec(configFD)
	unix.CloseOnExec(statusFD)
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

// readConfig reads the configuration. The stream may continue after it.
func readConfig() (*Config, io.Reader, error) {
	in := os.NewFile(configFD, "config")
	dec := json.NewDecoder(in)
	cfg := new(Config)
	if err := dec.Decode(cfg); err != nil {
		return nil, nil, err
	}
	return cfg, io.MultiReader(dec.Buffered(), in), nil
}

// tell reports a failure, or success if err is nil.
func tell(err error) int {
	r, code := new(Report), 0
	if err != nil {
		code = 1
		if !errors.As(err, &r) {
			r = &Report{Isolation: IsolationConfig, What: err.Error()}
		}
	}
	b, _ := json.Marshal(r) // cannot fail: texts and a number
	if _, err := unix.Write(statusFD, b); err != nil {
		return 1 // the host has exited
	}
	return code
}

// build builds the isolation. Each step must come before the steps preventing it.
func build(cfg *Config, input io.Reader) error {
	if err := buildFiles(cfg); err != nil {
		return err
	}
	if err := StartLoopback(); err != nil {
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

// become executes the guest agent.
func become(cfg *Config) error {
	// Standard input and output are devices of the host. The guest agent gets the sandbox's devices.
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Dup3(null, 0, 0), unix.Dup3(null, 1, 0), unix.Dup3(listenerFD, ListenFD, 0))
	}
	if err != nil {
		return failed(IsolationGuest, "arranging descriptors", err)
	}
	if tell(nil) != 0 {
		return errors.New("the host is gone")
	}
	return failed(IsolationGuest, "executing it", execGuest(cfg))
}

// execGuest executes the guest agent. A newly installed binary may still be open for writing for a moment, in a process
// forked by the host but still before exec.
func execGuest(cfg *Config) error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := unix.Exec(cfg.Argv[0], cfg.Argv, cfg.Env)
		if !errors.Is(err, unix.ETXTBSY) || pause > time.Second {
			return err
		}
		time.Sleep(pause)
	}
}
