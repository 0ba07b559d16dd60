package docker_test

import (
	"crypto/rand"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/workcell-dev/workcell/backend"
)

// BenchmarkOpen compares, alternating, a sandbox up to the answer of its first command with what the engine's API needs
// for the same container and an exec of its own. Removal is not counted.
func BenchmarkOpen(b *testing.B) {
	d := newBackend(b, nil)
	api := engineAPI(b)
	model := create(b, d, newSpec())
	conn := dial(b, d, model.ID)
	output(b, conn, "/bin/true")
	res, err := api.ContainerInspect(b.Context(), model.ID)
	if err != nil {
		b.Fatal(err)
	}
	var ours, raw []time.Duration
	for b.Loop() {
		begin := time.Now()
		info, err := d.Create(b.Context(), newSpec())
		if err != nil {
			b.Fatal(err)
		}
		output(b, dial(b, d, info.ID), "/bin/true")
		ours = append(ours, time.Since(begin))
		remove(b, d, info.ID)

		cfg, host := *res.Config, *res.HostConfig
		cfg.Labels = map[string]string{backend.LabelInstance: instance}
		cfg.Hostname = ""
		host.Mounts = slices.Clone(host.Mounts)
		name := strings.ToLower(rand.Text())
		host.Mounts[1].Source = name
		begin = time.Now()
		made, err := api.ContainerCreate(b.Context(), &cfg, &host, nil, nil, name)
		if err != nil {
			b.Fatal(err)
		}
		if err := api.ContainerStart(b.Context(), made.ID, container.StartOptions{}); err != nil {
			b.Fatal(err)
		}
		exec, err := api.ContainerExecCreate(b.Context(), made.ID, container.ExecOptions{Cmd: []string{"/bin/true"}, AttachStdout: true})
		if err != nil {
			b.Fatal(err)
		}
		s, err := api.ContainerExecAttach(b.Context(), exec.ID, container.ExecAttachOptions{})
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, s.Reader) // ends with the command
		s.Close()
		raw = append(raw, time.Since(begin))
		if err := api.ContainerRemove(b.Context(), made.ID, container.RemoveOptions{Force: true}); err != nil {
			b.Fatal(err)
		}
		if err := api.VolumeRemove(b.Context(), name, true); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(ours)
	slices.Sort(raw)
	o, r := ours[len(ours)/2], raw[len(raw)/2]
	b.ReportMetric(float64(o.Microseconds())/1000, "ours-p50-ms")
	b.ReportMetric(float64(r.Microseconds())/1000, "raw-p50-ms")
	b.ReportMetric(float64(o)/float64(r), "ratio")
}
