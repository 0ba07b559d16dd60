package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// target is a ratio of two figures of one run and what it should be.
type target struct {
	key     string // in the figures
	what    string
	over    string // figure divided
	under   string // by this one; empty for the figure itself
	atLeast float64
	atMost  float64
}

// targets are what the design promises of each engine.
func targets() []target {
	return []target{
		{"ratio.exec_vs_host", "docker: exec, of fork and exec on the host", "exec_p50_ms.workcell_docker", "exec_p50_ms.host", 0, 2.2},
		{"ratio.docker_api_exec_vs_ours", "docker: exec, faster than the Engine API", "exec_p50_ms.docker_api", "exec_p50_ms.workcell_docker", 25, 0},
		{"ratio.throughput_vs_docker_api", "docker: exec with 16 callers, faster than the Engine API", "exec_per_s_16.workcell_docker", "exec_per_s_16.docker_api", 50, 0},
		{"ratio.open_vs_docker_api", "docker: open, of the Engine API's", "open_p50_ms.workcell_docker", "open_p50_ms.docker_api", 0, .95},
		{"ratio.copy_api_file_100m_write_vs_ours", "docker: 100 MiB written, slower than by the copy API", "file_100m_write_mb_s.docker_api", "file_100m_write_mb_s.workcell_docker", 0, 1.6},
		{"ratio.copy_api_file_100m_read_vs_ours", "docker: 100 MiB read, slower than by the copy API", "file_100m_read_mb_s.docker_api", "file_100m_read_mb_s.workcell_docker", 0, 1.6},
		{"ratio.containerd_api_exec_vs_ours", "containerd: exec, faster than task.Exec", "exec_p50_ms.containerd_api", "exec_p50_ms.workcell_containerd", 15, 0},
		{"ratio.open_vs_containerd_api", "containerd: open, of NewContainer, NewTask and task.Exec", "open_p50_ms.workcell_containerd", "open_p50_ms.containerd_api", 0, .8},
		{"ratio.containerd_open_vs_docker", "containerd: open, of docker's", "open_p50_ms.workcell_containerd", "open_p50_ms.workcell_docker", 0, .45},
		{"open_p50_ms.workcell_local", "local: open in ms", "open_p50_ms.workcell_local", "", 0, 10},
		{"ratio.local_exec_vs_containerd", "local: exec, of containerd's", "exec_p50_ms.workcell_local", "exec_p50_ms.workcell_containerd", 0, 1},
		{"mcp_overhead_p50_ms.workcell_docker", "MCP on stdio: exec, ms on top of docker's", "mcp_overhead_p50_ms.workcell_docker", "", 0, 1},
	}
}

// judge adds the ratios to the figures and prints which targets were met. Those of engines that took no part are left out.
func (f figures) judge(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "target\tmeasured\twanted\t")
	for _, t := range targets() {
		v, ok := f[t.over]
		under := 1.
		if t.under != "" {
			under = f[t.under]
		}
		if !ok || under == 0 {
			continue
		}
		v /= under
		f[t.key] = v
		wanted, met := fmt.Sprintf(">= %g", t.atLeast), v >= t.atLeast
		if t.atMost != 0 {
			wanted, met = fmt.Sprintf("<= %g", t.atMost), v <= t.atMost
		}
		fmt.Fprintf(table, "%s\t%.3g\t%s\t%s\n", t.what, v, wanted, map[bool]string{true: "met", false: "MISSED"}[met])
	}
	table.Flush()
}
