package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// target is the target value of a figure, or of the ratio of two figures of one run.
type target struct {
	what            string
	engines         string // engines to replace * in the text and the keys; # stands for workcell_*
	over, under     string // keys of the figures; under is empty for a target without a ratio
	atLeast, atMost float64
}

const engines = "docker containerd local"

// targets returns the performance goals of the design.
func targets() []target {
	return []target{
		{"*: exec, compared with fork and exec on the host", "docker", "exec_p50_ms.#", "exec_p50_ms.host", 0, 2.2},
		{"*: exec, compared with containerd", "local", "exec_p50_ms.#", "exec_p50_ms.workcell_containerd", 0, 1},
		{"*: exec, times faster than the engine's API", "docker", "exec_p50_ms.*_api", "exec_p50_ms.#", 25, 0},
		{"*: exec, times faster than the engine's API", "containerd", "exec_p50_ms.*_api", "exec_p50_ms.#", 15, 0},
		{"*: exec, times faster than client-go", "kubernetes", "exec_p50_ms.client_go", "exec_p50_ms.#", 20, 0},
		{"*: 16 callers, compared with the engine's API", "docker", "exec_per_s_16.#", "exec_per_s_16.*_api", 50, 0},
		{"*: 16 callers, compared with client-go", "kubernetes", "exec_per_s_16.#", "exec_per_s_16.client_go", 40, 0},
		{"*: open, compared with the engine's API", "docker", "open_p50_ms.#", "open_p50_ms.*_api", 0, .95},
		{"*: open, compared with the engine's API", "containerd", "open_p50_ms.#", "open_p50_ms.*_api", 0, .8},
		{"*: open, compared with client-go", "kubernetes", "open_p50_ms.#", "open_p50_ms.client_go", 0, .5},
		{"*: open in ms", "local", "open_p50_ms.#", "", 0, 10},
		{"*: open from a pool, to the first answer, in ms", "docker containerd", "open_pool_p50_ms.#", "", 0, 3},
		{"*: open from a pool, to the first answer, in ms", "local", "open_pool_p50_ms.#", "", 0, 2},
		{"*: 20 opens from a pool at once, in ms", engines, "open_pool_20_ms.#", "", 0, 60},
		{"*: write 100 MiB, times the copy API", "docker", "file_100m_write_mb_s.*_api", "file_100m_write_mb_s.#", 0, 1.6},
		{"*: read 100 MiB, times the copy API", "docker", "file_100m_read_mb_s.*_api", "file_100m_read_mb_s.#", 0, 1.6},
		{"*: snapshot of 500 MB with shared blocks, in ms", "containerd local", "snapshot_500m_ms.#_xfs", "", 0, 50},
		{"*: rollback of 500 MB with shared blocks, in ms", "containerd local", "rollback_500m_ms.#_xfs", "", 0, 20},
		{"*: fork of 500 MB with shared blocks, in ms", "containerd local", "fork_500m_added_ms.#_xfs", "", 0, 20},
		{"*: snapshot of 500 MB, times cp -a", "containerd local", "snapshot_500m_ms.#_ext4", "cp_a_500m_ms.#_ext4", 0, 1.1},
		{"*: a round trip through a port, in ms", engines, "forward_added_ms.#", "", 0, 1},
		{"*: from a port of the sandbox, in MB/s", engines, "forward_read_mb_s.#", "", 150, 0},
		{"*: to a port of the sandbox, in MB/s", engines, "forward_write_mb_s.#", "", 150, 0},
		{"*: call of a host tool, in ms", "docker", "hosttool_call_p50_ms.#", "", 0, 1.5},
		{"*: host tool, compared with exec", "docker", "hosttool_call_p50_ms.#", "hosttool_exec_p50_ms.#", 0, 1.2},
		{"*: calls of host tools from 8 threads, per second", "docker", "hosttool_per_s_8.#", "", 600, 0},
		{"*: time that MCP on stdio adds to exec, in ms", "docker", "mcp_overhead_p50_ms.#", "", 0, 1},
		{"*: added by the model proxy to the first byte, in ms", "docker", "model_first_added_ms.#", "", 0, 3},
	}
}

// judge prints the targets and whether the figures meet them. It skips targets of engines without figures.
func (f figures) judge(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "target\tmeasured\twanted\t")
	for _, t := range targets() {
		for engine := range strings.FieldsSeq(t.engines) {
			in := func(s string) string { return strings.NewReplacer("*", engine, "#", "workcell_"+engine).Replace(s) }
			v, ok := f[in(t.over)]
			if t.under != "" {
				under := f[in(t.under)]
				if under == 0 {
					continue
				}
				v /= under
			}
			if !ok {
				continue
			}
			wanted, met := fmt.Sprintf(">= %g", t.atLeast), v >= t.atLeast
			if t.atMost != 0 {
				wanted, met = fmt.Sprintf("<= %g", t.atMost), v <= t.atMost
			}
			verdict := map[bool]string{true: "met", false: "MISSED"}[met]
			fmt.Fprintf(table, "%s\t%.3g\t%s\t%s\n", in(t.what), v, wanted, verdict)
		}
	}
	table.Flush()
}
