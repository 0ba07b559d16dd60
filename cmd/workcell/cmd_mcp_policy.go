package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/mcpserver"
)

// mcpPolicyFlags give the guard policy: a file, and flags over it.
type mcpPolicyFlags struct {
	file        string
	refuse      []string
	allow       []string
	refuseFiles []string
	allowFiles  []string
	fileMB      int64
	workspaceMB int64
	execution   time.Duration
	memoryMB    int64
	cpu         int64
}

func (f *mcpPolicyFlags) addTo(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.file, "policy", "", "YAML file with the guard policy; the flags below go over it")
	fs.StringArrayVar(&f.refuse, "refuse-command", nil, "refuse commands that begin with these words, as in 'git push'; may be repeated")
	fs.StringArrayVar(&f.allow, "allow-command", nil, "allow only commands that begin with these words; may be repeated")
	fs.StringArrayVar(&f.refuseFiles, "refuse-file", nil, "refuse files whose name matches, as in '*.exe'; may be repeated")
	fs.StringArrayVar(&f.allowFiles, "allow-file", nil, "allow only files whose name matches; may be repeated")
	fs.Int64Var(&f.fileMB, "max-file-mb", -1, "largest file through the file tools, 0 is no bound (default 10)")
	fs.Int64Var(&f.workspaceMB, "max-workspace-mb", -1, "size of a sandbox's files, 0 is no bound (default 1024)")
	fs.DurationVar(&f.execution, "max-execution", -1, "longest command, program or task, 0 is no bound (default 5m0s)")
	fs.Int64Var(&f.memoryMB, "max-memory-mb", -1, "memory of a sandbox (default the engine driver's)")
	fs.Int64Var(&f.cpu, "max-cpu", -1, "CPU of a sandbox in thousandths of a core (default the engine driver's)")
}

func (f *mcpPolicyFlags) read() (mcpserver.Policy, error) {
	p := mcpserver.DefaultPolicy()
	if f.file != "" {
		file, err := os.Open(f.file)
		if err != nil {
			return p, fail(exitInvalid, err, "--policy names a YAML file")
		}
		defer file.Close() // only read from
		if p, err = mcpserver.ParsePolicy(file); err != nil {
			return p, fail(exitInvalid, fmt.Errorf("%s: %w", f.file, err), "docs/mcp.md describes the guard policy")
		}
	}
	for _, pattern := range f.refuse {
		p.Commands.Refuse = append(p.Commands.Refuse, mcpserver.CommandRule{Pattern: pattern})
	}
	for _, pattern := range f.allow {
		p.Commands.Allow = append(p.Commands.Allow, mcpserver.CommandRule{Pattern: pattern})
	}
	p.Files.Refuse = append(p.Files.Refuse, f.refuseFiles...)
	p.Files.Allow = append(p.Files.Allow, f.allowFiles...)
	for _, limit := range []struct {
		given int64
		field *int64
	}{
		{f.fileMB, &p.Limits.FileMB}, {f.workspaceMB, &p.Limits.WorkspaceMB}, {f.memoryMB, &p.Limits.MemoryMB}, {f.cpu, &p.Limits.CPUMillicores},
	} {
		if limit.given >= 0 {
			*limit.field = limit.given
		}
	}
	switch {
	case f.execution == 0:
		p.Limits.ExecutionSeconds = 0
	case f.execution > 0:
		p.Limits.ExecutionSeconds = max(1, int64(f.execution/time.Second))
	}
	return p, nil
}
