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
		{"open_pool_p50_ms.workcell_docker", "docker: open of a sandbox that was ready, to its first answer, ms", "open_pool_p50_ms.workcell_docker", "", 0, 3},
		{"open_pool_p50_ms.workcell_containerd", "containerd: the same", "open_pool_p50_ms.workcell_containerd", "", 0, 3},
		{"open_pool_p50_ms.workcell_local", "local: the same", "open_pool_p50_ms.workcell_local", "", 0, 2},
		{"open_pool_20_ms.workcell_docker", "docker: 20 such opens at once, ms", "open_pool_20_ms.workcell_docker", "", 0, 60},
		{"open_pool_20_ms.workcell_containerd", "containerd: the same", "open_pool_20_ms.workcell_containerd", "", 0, 60},
		{"open_pool_20_ms.workcell_local", "local: the same", "open_pool_20_ms.workcell_local", "", 0, 60},
		{"run_pool_added_ms.workcell_docker", "docker: sandbox_run with a pool, ms on top of its program", "run_pool_added_ms.workcell_docker", "", 0, 10},
		{"run_pool_added_ms.workcell_containerd", "containerd: the same", "run_pool_added_ms.workcell_containerd", "", 0, 10},
		{"run_pool_added_ms.workcell_local", "local: the same", "run_pool_added_ms.workcell_local", "", 0, 10},
		{"pool_idle_rss_mib.workcell_docker", "docker: MiB of a sandbox that is ready", "pool_idle_rss_mib.workcell_docker", "", 0, 12},
		{"pool_idle_rss_mib.workcell_containerd", "containerd: the same", "pool_idle_rss_mib.workcell_containerd", "", 0, 12},
		{"pool_idle_rss_mib.workcell_local", "local: the same", "pool_idle_rss_mib.workcell_local", "", 0, 12},
		{"pool_idle_cpu_percent.workcell_docker", "docker: percent of a processor that it takes", "pool_idle_cpu_percent.workcell_docker", "", 0, 1},
		{"pool_idle_cpu_percent.workcell_containerd", "containerd: the same", "pool_idle_cpu_percent.workcell_containerd", "", 0, 1},
		{"pool_idle_cpu_percent.workcell_local", "local: the same", "pool_idle_cpu_percent.workcell_local", "", 0, 1},
		{"ratio.pool_refill_exec_p99.workcell_docker", "docker: p99 of exec beside a pool that is filled", "pool_refill_exec_p99_ms.workcell_docker", "pool_alone_exec_p99_ms.workcell_docker", 0, 1.5},
		{"ratio.pool_refill_exec_p99.workcell_containerd", "containerd: the same", "pool_refill_exec_p99_ms.workcell_containerd", "pool_alone_exec_p99_ms.workcell_containerd", 0, 1.5},
		{"ratio.pool_refill_exec_p99.workcell_local", "local: the same", "pool_refill_exec_p99_ms.workcell_local", "pool_alone_exec_p99_ms.workcell_local", 0, 1.5},
		{"snapshot_500m_ms.workcell_containerd_xfs", "containerd: snapshot of 500 MB that share blocks, ms", "snapshot_500m_ms.workcell_containerd_xfs", "", 0, 50},
		{"rollback_500m_ms.workcell_containerd_xfs", "containerd: rollback there, ms", "rollback_500m_ms.workcell_containerd_xfs", "", 0, 20},
		{"fork_500m_added_ms.workcell_containerd_xfs", "containerd: fork there, ms on top of an open", "fork_500m_added_ms.workcell_containerd_xfs", "", 0, 20},
		{"ratio.snapshot_500m_vs_cp_a.workcell_containerd_ext4", "containerd: snapshot of 500 MB that cannot, of cp -a", "snapshot_500m_ms.workcell_containerd_ext4", "cp_a_500m_ms.workcell_containerd_ext4", 0, 1.1},
		{"snapshot_500m_ms.workcell_local_xfs", "local: snapshot of 500 MB that share blocks, ms", "snapshot_500m_ms.workcell_local_xfs", "", 0, 50},
		{"rollback_500m_ms.workcell_local_xfs", "local: rollback there, ms", "rollback_500m_ms.workcell_local_xfs", "", 0, 20},
		{"fork_500m_added_ms.workcell_local_xfs", "local: fork there, ms on top of an open", "fork_500m_added_ms.workcell_local_xfs", "", 0, 20},
		{"ratio.snapshot_500m_vs_cp_a.workcell_local_ext4", "local: snapshot of 500 MB that cannot, of cp -a", "snapshot_500m_ms.workcell_local_ext4", "cp_a_500m_ms.workcell_local_ext4", 0, 1.1},
		{"ratio.open_vs_client_go", "kubernetes: open, of create, Running and exec by client-go", "open_p50_ms.workcell_kubernetes", "open_p50_ms.client_go", 0, .5},
		{"ratio.client_go_exec_vs_ours", "kubernetes: exec, faster than by client-go", "exec_p50_ms.client_go", "exec_p50_ms.workcell_kubernetes", 20, 0},
		{"ratio.throughput_vs_client_go", "kubernetes: exec with 16 callers, faster than by client-go", "exec_per_s_16.workcell_kubernetes", "exec_per_s_16.client_go", 40, 0},
		{"state_10000_records_ms.postgres", "PostgreSQL: 10,000 records listed, ms", "state_10000_records_ms.postgres", "", 0, 100},
		{"state_journal_p50_ms.postgres", "PostgreSQL: an entry of a journal, ms", "state_journal_p50_ms.postgres", "", 0, 2},
		{"mcp_overhead_p50_ms.workcell_docker", "MCP on stdio: exec, ms on top of docker's", "mcp_overhead_p50_ms.workcell_docker", "", 0, 1},
		{"forward_added_ms.workcell_docker", "ports: ms added to a round trip", "forward_added_ms.workcell_docker", "", 0, 1},
		{"forward_added_ms.workcell_containerd", "ports, containerd: ms added to a round trip", "forward_added_ms.workcell_containerd", "", 0, 1},
		{"forward_added_ms.workcell_local", "ports, local: ms added to a round trip", "forward_added_ms.workcell_local", "", 0, 1},
		{"forward_read_mb_s.workcell_docker", "ports: MB/s out of the sandbox", "forward_read_mb_s.workcell_docker", "", 150, 0},
		{"forward_write_mb_s.workcell_docker", "ports: MB/s into the sandbox", "forward_write_mb_s.workcell_docker", "", 150, 0},
		{"forward_read_mb_s.workcell_containerd", "ports, containerd: MB/s out of the sandbox", "forward_read_mb_s.workcell_containerd", "", 150, 0},
		{"forward_write_mb_s.workcell_containerd", "ports, containerd: MB/s into the sandbox", "forward_write_mb_s.workcell_containerd", "", 150, 0},
		{"forward_read_mb_s.workcell_local", "ports, local: MB/s out of the sandbox", "forward_read_mb_s.workcell_local", "", 150, 0},
		{"forward_write_mb_s.workcell_local", "ports, local: MB/s into the sandbox", "forward_write_mb_s.workcell_local", "", 150, 0},
		{"hosttool_call_p50_ms.workcell_docker", "host tools: a call on a kept connection, ms", "hosttool_call_p50_ms.workcell_docker", "", 0, 1.5},
		{"ratio.hosttool_vs_exec", "host tools: a call on a kept connection, of exec", "hosttool_call_p50_ms.workcell_docker", "hosttool_exec_p50_ms.workcell_docker", 0, 1.2},
		{"hosttool_conn_p50_ms.workcell_docker", "host tools: a call on a new connection, ms", "hosttool_conn_p50_ms.workcell_docker", "", 0, 4},
		{"hosttool_per_s_8.workcell_docker", "host tools: calls per second of 8 callers", "hosttool_per_s_8.workcell_docker", "", 600, 0},
		{"hosttool_shell_p50_ms.workcell_docker", "host tools: `tools call` in a shell, ms", "hosttool_shell_p50_ms.workcell_docker", "", 0, 15},
		{"hosttool_1m_p50_ms.workcell_docker", "host tools: a result of 1 MiB, ms", "hosttool_1m_p50_ms.workcell_docker", "", 0, 25},
		{"hosttool_dispatch_p50_ms.host", "host tools: the dispatcher alone, ms", "hosttool_dispatch_p50_ms.host", "", 0, .2},
		{"hosttool_open_added_ms.workcell_docker", "host tools: ms added to an open", "hosttool_open_added_ms.workcell_docker", "", 0, 5},
		{"model_first_added_ms.workcell_docker", "model proxy: ms added to the first byte of an answer", "model_first_added_ms.workcell_docker", "", 0, 3},
		{"model_chunk_added_ms.workcell_docker", "model proxy: ms added to a chunk", "model_chunk_added_ms.workcell_docker", "", 0, 2},
		{"ratio.open_installed_docker", "docker: open with packages, of one without", "open_installed_p50_ms.workcell_docker", "open_plain_p50_ms.workcell_docker", 0, 1.1},
		{"ratio.open_installed_containerd", "containerd: open with packages, of one without", "open_installed_p50_ms.workcell_containerd", "open_plain_p50_ms.workcell_containerd", 0, 1.1},
		{"ratio.open_installed_local", "local: open with packages, of one without", "open_installed_p50_ms.workcell_local", "open_plain_p50_ms.workcell_local", 0, 1.1},
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
