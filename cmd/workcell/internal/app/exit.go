package app

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// Exit codes. The command's help documents them, so update both together.
const (
	ExitFailed      = 1
	ExitUsage       = 2
	ExitInvalid     = 3
	ExitModel       = 4
	ExitUnavailable = 5
	ExitNotFound    = 6
	ExitConflict    = 7
	ExitNoRoom      = 8

	ExitExecTimeout = 124
	ExitExecProduct = 125
	ExitExecNoRun   = 126
	ExitExecMissing = 127
	ExitSignalBase  = 128
)

// ExitWith returns an error with an exit code and no text, because the output already contains the result.
func ExitWith(code int) error { return Fail(code, nil, "") }

// Fail returns an error with an exit code and a hint.
func Fail(code int, err error, todo string) error { return hint.New(hint.Kind(code), err, todo) }

// UsageError returns an error for invalid flags or arguments.
func UsageError(err error, hint string) error { return Fail(ExitUsage, err, hint) }

// InvalidFlag returns the error for the value of a flag. allowed is the hint.
func InvalidFlag(name string, value any, allowed string) error {
	if text, ok := value.(string); ok {
		value = strconv.Quote(text)
	}
	return UsageError(fmt.Errorf("invalid value %v for --%s", value, name), allowed)
}

// IsResult reports whether an error is only an exit code.
func IsResult(err error) bool {
	h := hint.Of(err)
	return h != nil && h.Err == nil
}

// Classify returns the exit code and the hint of an error. The command's own choice comes first, then the choice of the
// package that created the error, and then the default of the error's class.
func Classify(err error) (code int, todo string) {
	h := hint.Of(err)
	switch {
	case h == nil:
		return classOf(err)
	case h.Kind == hint.Failed:
		code, _ = classOf(h.Err)
		return code, h.Hint
	}
	return int(h.Kind), h.Hint
}

// classOf returns the exit code and the hint for the first matching class of an error.
func classOf(err error) (code int, hint string) {
	var vanished *session.VanishedError
	var install *session.InstallError
	switch {
	case errors.As(err, &install) && len(install.Refused) > 0:
		return ExitFailed,
			"add other hosts than the registries to setup.network.allow in the file; for private hosts, pass " +
				"--egress-allow-private"
	case errors.As(err, &install):
		return ExitFailed,
			"check pip_packages, npm_packages, and setup in the file; for other registries, pass --pip-index or --npm-registry"
	case errors.As(err, &vanished) && vanished.Key.Run() != "":
		return ExitNotFound,
			fmt.Sprintf("to resume the run with its files, run `workcell runs resume %s`; to remove them, run `workcell runs "+
				"cancel %[1]s`", vanished.Key.Run())
	case errors.As(err, &vanished):
		return ExitNotFound,
			fmt.Sprintf("to rebuild it with its files, run `workcell sandbox open --name %s` with its original --mount, "+
				"--network, and --oci-runtime; to remove them, run `workcell sandbox rm %[1]s`", vanished.Key.ID)
	case errors.As(err, new(*backend.IsolationError)):
		return ExitFailed, wish.MoreIsolation
	case errors.Is(err, runstore.ErrDamaged):
		return ExitFailed,
			"to end the run and remove its sandboxes, run `workcell runs cancel RUN`; other runs are not affected"
	case state.Hint(err) != "":
		return ExitFailed, state.Hint(err)
	}
	for _, class := range []struct {
		code int
		err  error
		hint string
	}{
		{ExitConflict, backend.ErrBusy, "try again in a minute"},
		{ExitUnavailable, backend.ErrUnavailable, "run `workcell doctor` to check the container engine"},
		{ExitFailed, backend.ErrImage, "check the image name, or map it to a mirror: WORKCELL_IMAGE_MAP=FROM=TO"},
		{ExitFailed, backend.ErrUnsupported, "run `workcell doctor` to see what this engine can enforce"},
		{ExitNoRoom, backend.ErrCapacity,
			"stop running commands, or remove sandboxes: `workcell sandbox ls`, then `workcell sandbox rm SANDBOX`"},
		{ExitNoRoom, backend.ErrNoRoom,
			"free space on the engine's disk, remove sandboxes (`workcell sandbox gc --yes`), or request a smaller workspace"},
		{ExitNoRoom, backend.ErrQuota, "delete files with `workcell sandbox rm SANDBOX:PATH`"},
		{ExitConflict, backend.ErrExists, ""},
		{ExitUsage, backend.ErrInvalid, ""},
		{ExitNotFound, backend.ErrNotFound, "run `workcell sandbox ls` to list sandboxes"},
	} {
		if errors.Is(err, class.err) {
			return class.code, class.hint
		}
	}
	return ExitFailed, ""
}

// catchBrokenPipes permanently turns writes to a closed pipe into errors instead of killing the process. A run then
// continues after the reader of the progress is gone, and closes the sandboxes if the reader of the result is gone.
// Child processes do not inherit the signal handler, unlike an ignored signal.
func catchBrokenPipes() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
