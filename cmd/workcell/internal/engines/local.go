package engines

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/internal/hint"
)

func (s Set) local() Engine {
	return Engine{
		Name: Local,
		open: func(ctx context.Context) (backend.SandboxBackend, error) {
			dir, err := s.stateDir(Local)
			if err != nil {
				return nil, err
			}
			b, err := local.New(ctx, &local.Options{StateDir: dir, Logger: s.Logger})
			if errors.Is(err, fs.ErrPermission) || errors.Is(err, backend.ErrPermission) {
				err = hint.New(hint.Unavailable, err, dirFix(dir))
			}
			return asBackend(b, err)
		},
		id:     func(context.Context) (string, error) { return s.stateDir(Local) },
		absent: func(context.Context) string { return "" },
		Fix:    localFix,
	}
}

// dirFix returns a remedy for a state directory of another user or with access for other users.
func dirFix(dir string) string {
	if os.Geteuid() == 0 {
		return fmt.Sprintf("run `mv %s %[1]s.old`", dir)
	}
	return "run `XDG_STATE_HOME=DIR workcell …` with a directory that you own"
}

// localFix returns a remedy if the local backend cannot isolate sandboxes. The error contains the missing feature.
func localFix(error) string {
	if runtime.GOOS != "linux" {
		return "the local backend requires Linux"
	}
	if os.Geteuid() == 0 {
		return "run as root with all capabilities, or as a user who may create user namespaces"
	}
	for _, k := range []struct{ file, bad, fix string }{
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "run as root: sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/user/max_user_namespaces", "0", "run as root: sysctl -w user.max_user_namespaces=10000"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
			"run as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or add an AppArmor profile with `userns`"},
	} {
		if raw, err := os.ReadFile(k.file); err == nil && strings.TrimSpace(string(raw)) == k.bad {
			return k.fix
		}
	}
	return "run as root, or enable user namespaces in the kernel"
}
