package main

import (
	"context"
	"os"
	"runtime"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/local"
)

func (a *app) localDriver() driver {
	return driver{
		name: backendLocal,
		open: func(ctx context.Context) (backend.SandboxBackend, error) {
			dir, err := a.engineDir(backendLocal)
			if err != nil {
				return nil, err
			}
			return asBackend(local.New(ctx, &local.Options{StateDir: dir, Logger: a.logger()}))
		},
		absent: func(context.Context) string { return "" },
		fix:    localFix,
	}
}

// localFix says what to do when the local backend cannot build its walls: the error has said which one.
func localFix(error) string {
	if runtime.GOOS != "linux" {
		return "the local backend needs Linux"
	}
	if os.Geteuid() == 0 {
		return "it works where root has all its rights, and for other users where the kernel allows them user namespaces"
	}
	for _, s := range []struct{ file, bad, fix string }{
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "as root: sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/user/max_user_namespaces", "0", "as root: sysctl -w user.max_user_namespaces=10000"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
			"as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile with `userns`"},
	} {
		if raw, err := os.ReadFile(s.file); err == nil && strings.TrimSpace(string(raw)) == s.bad {
			return s.fix
		}
	}
	return "run it as root, or where the kernel allows user namespaces"
}
