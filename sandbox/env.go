package sandbox

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/lib"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// traceParent is the variable for the trace context of commands.
const traceParent = "TRACEPARENT"

// DefaultPath is the PATH of commands if the image has none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// gitConfig is Git's system configuration in sandboxes. It includes the image's.
const gitConfig = embed.Dir + "/lib/" + lib.GitConfig

// baseEnv layers the environment of a sandbox: request over image over defaults. The image's entries have the form
// "NAME=value". Invalid entries are ignored without an error, because Workcell does not control the image.
func baseEnv(h wire.Hello, image []string, request map[string]string) map[string]string {
	user := wire.UserName(h.UID)
	env := map[string]string{
		"PATH": DefaultPath,
		"HOME": cmp.Or(h.Home, h.Workdir), "USER": user, "LOGNAME": user,
		"LANG": "C.UTF-8",
		// To avoid compiling the modules at each start, because Python cannot write a cache into a read-only image.
		"PYTHONPYCACHEPREFIX": "/tmp/.pycache",
	}
	if h.Home != "" { // guests of earlier versions have no such file
		env["GIT_CONFIG_SYSTEM"] = gitConfig
	}
	for _, entry := range image {
		name, value, ok := strings.Cut(entry, "=")
		// They belong to the image's user, whose home directory is rarely writable.
		users := name == "HOME" || name == "USER" || name == "LOGNAME"
		if ok && name != "" && name != wire.ExecVariable && !users && !strings.Contains(entry, "\x00") {
			env[name] = value
		}
	}
	maps.Copy(env, request)
	return env
}

// execEnv returns the whole environment of a command as sorted "NAME=value" entries.
func execEnv(base, request map[string]string, traceparent string) []string {
	env := maps.Clone(base)
	if traceparent != "" {
		env[traceParent] = traceparent
	}
	maps.Copy(env, request)
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// javaOptions is a list of options of the Java virtual machine. The last of several values of an option is used.
const javaOptions = "JAVA_TOOL_OPTIONS"

// withLists returns the variables of a request over base, with entries before those of lists.
func withLists(base, request, before map[string]string) map[string]string {
	env := maps.Collect(maps.All(request)) // never nil
	for name, entries := range before {
		rest, set := request[name]
		if !set {
			rest = base[name]
		}
		separator := ":"
		if name == javaOptions {
			separator = " "
		}
		if rest != "" {
			entries += separator + rest
		}
		env[name] = entries
	}
	return env
}

// maxEnvBytes is the maximum size of a command's environment. Linux limits arguments and environment together to a
// quarter of the stack limit, usually 2 MiB.
const maxEnvBytes = 1 << 20

// ValidateEnv validates names and values. It allows LD_PRELOAD and similar names, because the sandbox is the security
// boundary, not the environment.
func ValidateEnv(env map[string]string) error {
	size := 0
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		switch {
		case name == "":
			return fmt.Errorf("%w: environment variable without a name", backend.ErrInvalid)
		case strings.ContainsAny(name, "=\x00"):
			return fmt.Errorf("%w: environment variable name %q contains = or NUL", backend.ErrInvalid, sanitize.Message(name))
		case strings.Contains(value, "\x00"):
			return fmt.Errorf("%w: value of environment variable %q contains NUL", backend.ErrInvalid, sanitize.Message(name))
		case name == wire.ExecVariable:
			return fmt.Errorf("%w: environment variable %s is reserved", backend.ErrInvalid, wire.ExecVariable)
		}
		size += len(name) + len(value) + 2
	}
	if size > maxEnvBytes {
		return fmt.Errorf("%w: the environment has %d bytes, the limit is %d", backend.ErrTooLarge, size, maxEnvBytes)
	}
	return nil
}
