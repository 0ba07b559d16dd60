package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/mcpserver"
)

// mcpPolicyFlags are the flags of the guard policy: a file, and single values over it.
type mcpPolicyFlags struct {
	file        string
	refuse      []string
	allow       []string
	refuseFiles []string
	allowFiles  []string
	fileMB      bound
	workspaceMB bound
	execution   timeBound
	memoryMB    bound
	cpu         bound
}

// bound is the value of a flag with a number of at least so much.
type bound struct {
	n     *int64 // nil: the flag was not given
	least int64
}

func (b *bound) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return errors.New("not a whole number")
	}
	if n < b.least {
		return fmt.Errorf("it must be at least %d", b.least)
	}
	b.n = &n
	return nil
}

func (b *bound) String() string {
	if b == nil || b.n == nil {
		return ""
	}
	return strconv.FormatInt(*b.n, 10)
}

func (b *bound) Type() string { return "int" }

// or returns the flag's value, or another one for a flag that was not given.
func (b *bound) or(other int) int {
	if b.n == nil {
		return other
	}
	return int(*b.n)
}

// timeBound is the value of a flag with a time in whole seconds.
type timeBound struct{ bound }

func (b *timeBound) Set(text string) error {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return errors.New("not a time such as 90s or 5m")
	case d < 0:
		return errors.New("it must be at least 0s")
	case d%time.Second != 0:
		return errors.New("it must be in whole seconds")
	}
	n := int64(d / time.Second)
	b.n = &n
	return nil
}

func (b *timeBound) Type() string { return "duration" }

func (f *mcpPolicyFlags) addTo(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.file, "policy", "", "YAML file with the guard policy; the flags below go over it")
	fs.StringArrayVar(&f.refuse, "refuse-command", nil, "refuse commands that begin with these words, as in 'git push'; may be repeated")
	fs.StringArrayVar(&f.allow, "allow-command", nil, "allow only commands that begin with these words; may be repeated")
	fs.StringArrayVar(&f.refuseFiles, "refuse-file", nil, "refuse files whose name matches, as in '*.exe'; may be repeated")
	fs.StringArrayVar(&f.allowFiles, "allow-file", nil, "allow only files whose name matches; may be repeated")
	fs.Var(&f.fileMB, "max-file-mb", "largest file through the file tools, 0 is no bound (default 10)")
	fs.Var(&f.workspaceMB, "max-workspace-mb", limitUsage("workspace_mb")+", set aside on the disk where that can be; 0 leaves it to agents and workflows")
	fs.Var(&f.execution, "max-execution", "longest command, program or task, 0 is no bound (default 5m0s)")
	fs.Var(&f.memoryMB, "max-memory-mb", limitUsage("memory_mb"))
	fs.Var(&f.cpu, "max-cpu", limitUsage("cpu_millicores"))
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
		given bound
		field *int64
	}{
		{f.fileMB, &p.Limits.FileMB}, {f.workspaceMB, &p.Limits.WorkspaceMB}, {f.execution.bound, &p.Limits.ExecutionSeconds},
		{f.memoryMB, &p.Limits.MemoryMB}, {f.cpu, &p.Limits.CPUMillicores},
	} {
		if limit.given.n != nil {
			*limit.field = *limit.given.n
		}
	}
	return p, nil
}
