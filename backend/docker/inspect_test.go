package docker_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
)

// TestInspect goes through section 5 of the CIS Docker Benchmark, rule by rule, on what the engine says of a sandbox.
func TestInspect(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	spec.Env = []string{"CANARY=canary-s3cret-env"}
	spec.Limits = backend.Limits{CPUMillis: 500, MemoryBytes: 256 << 20, PIDs: 64, TmpBytes: 8 << 20, OpenFiles: 2048}
	info := create(t, b, spec)
	res, raw, err := engineAPI(t).ContainerInspectWithRaw(t.Context(), info.ID, true)
	if err != nil {
		t.Fatal(err)
	}
	c, h := res.Config, res.HostConfig
	rules := []struct {
		name string
		ok   bool
	}{
		{"5.2 SELinux or AppArmor: nothing disables it", !slices.ContainsFunc(h.SecurityOpt, func(s string) bool {
			return strings.HasPrefix(s, "label=disable") || strings.HasPrefix(s, "apparmor=unconfined")
		})},
		{"5.4 no capabilities", len(h.CapAdd) == 0 && cmp.Equal([]string(h.CapDrop), []string{"ALL"})},
		{"5.5 not privileged", !h.Privileged},
		{"5.6, 5.8, 5.9 no published ports", len(h.PortBindings) == 0 && !h.PublishAllPorts && len(c.ExposedPorts) == 0},
		{"5.6 no bind mounts", len(h.Binds) == 0 && !slices.ContainsFunc(h.Mounts, func(m mount.Mount) bool { return m.Type == mount.TypeBind })},
		{"5.10 not the host's network", h.NetworkMode == "none"},
		{"5.11 memory limited, swap included", h.Memory == 266<<20 && h.MemorySwap == h.Memory},
		{"5.12 CPU limited", h.NanoCPUs == 500_000_000},
		{"5.13 root read-only", h.ReadonlyRootfs},
		{"5.15 no restart", h.RestartPolicy.Name == container.RestartPolicyDisabled && h.RestartPolicy.MaximumRetryCount == 0},
		{"5.16, 5.17, 5.21 namespaces", h.PidMode == "" && h.IpcMode == container.IPCModePrivate && h.UTSMode == "" && h.CgroupnsMode == container.CgroupnsModePrivate},
		{"5.18 no devices", len(h.Devices) == 0 && len(h.DeviceRequests) == 0 && len(h.DeviceCgroupRules) == 0},
		{"5.20 no shared propagation", !slices.ContainsFunc(res.Mounts, func(m container.MountPoint) bool {
			return strings.Contains(string(m.Propagation), "shared")
		})},
		{"5.22 seccomp", !slices.Contains(h.SecurityOpt, "seccomp=unconfined")},
		{"5.25 cgroup parent is the engine's", h.CgroupParent == ""},
		{"5.26 no new privileges", slices.Contains(h.SecurityOpt, "no-new-privileges")},
		{"5.29 pids limited", h.PidsLimit != nil && *h.PidsLimit == 84},
		{"5.31 user namespace not opened", h.UsernsMode == ""},
		{"5.32 no engine socket", !strings.Contains(string(raw), "docker.sock")},
		{"user", c.User == "1000:1000"},
		{"log", h.LogConfig.Type == "none"},
		{"guest is the main process", h.Init != nil && !*h.Init && res.Path == "/.workcell/workcell-guest" && cmp.Equal(res.Args, []string{"--workspace-bytes=524288000", "--workspace-files=128000", "--workspace-watched=true"})},
		{"streams", c.OpenStdin && !c.StdinOnce && !c.Tty},
		{"health check off", c.Healthcheck != nil && cmp.Equal(c.Healthcheck.Test, []string{"NONE"})},
		{"nothing masked less than usual", slices.Contains(h.MaskedPaths, "/proc/keys") && slices.Contains(h.ReadonlyPaths, "/proc/sys")},
		{"ulimits", cmp.Equal(ulimits(h.Ulimits), map[string][2]int64{"core": {0, 0}, "nofile": {2048, 2048}, "fsize": {500 << 20, 500 << 20}})},
		{"shared memory sized", h.ShmSize == 64<<20},
		{"no secret of the user's", !strings.Contains(string(raw), "canary-s3cret")},
		{"no extra groups, hosts, sysctls, links", len(h.GroupAdd)+len(h.ExtraHosts)+len(h.Sysctls)+len(h.Links)+len(h.VolumesFrom) == 0},
		{"oom killer on", h.OomKillDisable == nil || !*h.OomKillDisable},
		{"name", res.Name == "/workcell-"+spec.ID},
		{"image by its name", c.Image == spec.Image},
	}
	for _, r := range rules {
		if !r.ok {
			t.Errorf("%s\n%s", r.name, raw)
		}
	}
	if want := "rw,nosuid,nodev,exec,size=8388608,nr_inodes=2048,mode=1777,uid=1000,gid=1000"; h.Tmpfs["/tmp"] != want {
		t.Errorf("/tmp: %s, want %s", h.Tmpfs["/tmp"], want)
	}
}

func ulimits(us []*container.Ulimit) map[string][2]int64 {
	m := map[string][2]int64{}
	for _, u := range us {
		m[u.Name] = [2]int64{u.Soft, u.Hard}
	}
	return m
}
