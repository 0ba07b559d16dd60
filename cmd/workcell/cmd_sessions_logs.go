package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// followWait is how long one question for new output waits.
const followWait = 30 * time.Second

type sessionsLogsOptions struct {
	engine engineFlags
	out    outputFlag
	follow bool
}

func newSessionsLogsCmd(a *app) *cobra.Command {
	o := &sessionsLogsOptions{}
	cmd := &cobra.Command{
		Use:   "logs [flags] SANDBOX [EXEC_ID]",
		Short: "Show what commands in a sandbox wrote",
		Long: `Without EXEC_ID, list the commands that the sandbox knows, oldest first: all that run and the latest of those that
ended. With EXEC_ID, print what that command wrote to its standard output and error, to standard output and error, byte
for byte. The sandbox may belong to a run that is under way, which goes on undisturbed.

Recorded is what agents, workflows, MCP clients and ` + "`sessions attach`" + ` ran. What ` + "`workcell sessions exec`" + ` ran had its output where it was
called, and is not kept. Which program a command is, the list does not tell: that may be a secret. Of long output the latest part is kept; a line on standard error says so when the
beginning is missing.`,
		Example: "  workcell sessions logs mybox\n  workcell sessions logs mybox exec_… --follow",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && cmd.Flags().Changed("output") {
				return usageError(errors.New("a command's output has no other format"), "-o is for the list of commands")
			}
			if len(args) == 1 && o.follow {
				return usageError(errors.New("--follow needs a command"), "`workcell sessions logs SANDBOX` lists them")
			}
			return a.withManager(cmd.Context(), o.engine, imageFlags{}, stateWanted, func(ctx context.Context, m *session.Manager) error {
				s, err := connect(ctx, m, args[0])
				if err != nil {
					return err
				}
				if len(args) == 1 {
					return o.list(ctx, a, s)
				}
				return o.print(ctx, a, s, args[1])
			})
		},
	}
	o.engine.addTo(cmd)
	o.out.addTo(cmd)
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what the command writes until it ends")
	return cmd
}

// execOutput is a command in the output of `sessions logs`.
type execOutput struct {
	ExecID      string            `json:"exec_id"`
	Status      session.ExecState `json:"status"`
	ExitCode    *int              `json:"exit_code,omitempty"` // absent while it runs, and when a signal ended it
	Signal      string            `json:"signal,omitempty"`
	DurationMS  int64             `json:"duration_ms"`        // so far, while it runs
	AgeMS       int64             `json:"age_ms,omitempty"`   // how long ago it was started; absent when the sandbox cannot tell
	Terminal    bool              `json:"terminal,omitempty"` // `sessions attach` joins it
	StdoutBytes int64             `json:"stdout_bytes"`
	StderrBytes int64             `json:"stderr_bytes"`
}

func (o *sessionsLogsOptions) list(ctx context.Context, a *app, s *session.Session) error {
	known, err := s.ListExecs(ctx)
	if err != nil {
		return err
	}
	list := make([]execOutput, len(known))
	for i, st := range known {
		list[i] = execOutput{
			ExecID: st.ExecID, Status: st.Status, Signal: st.Signal, DurationMS: st.Duration.Milliseconds(),
			AgeMS: st.Age.Milliseconds(), Terminal: st.Terminal,
			StdoutBytes: st.StdoutBytes, StderrBytes: st.StderrBytes,
		}
		if st.Done() && st.Signal == "" {
			list[i].ExitCode = &st.ExitCode
		}
	}
	return o.out.write(a.stdout, list, func(w io.Writer) error { return execTable(w, list) })
}

func execTable(w io.Writer, list []execOutput) error {
	rows := make([][]string, len(list))
	for i, e := range list {
		end := e.Signal
		if e.ExitCode != nil {
			end = strconv.Itoa(*e.ExitCode)
		}
		took := (time.Duration(e.DurationMS) * time.Millisecond).Round(10 * time.Millisecond)
		begun := ""
		if e.AgeMS > 0 {
			begun = age(time.Duration(e.AgeMS) * time.Millisecond)
		}
		rows[i] = []string{e.ExecID, string(e.Status), end, took.String(), begun, byteSize(e.StdoutBytes), byteSize(e.StderrBytes)}
	}
	return writeTable(w, []string{"EXEC ID", "STATUS", "EXIT", "DURATION", "AGE", "STDOUT", "STDERR"}, rows)
}

// print copies a command's recorded output, up to what there is now or, with follow, up to its end.
func (o *sessionsLogsOptions) print(ctx context.Context, a *app, s *session.Session, execID string) error {
	req := session.ReadExecRequest{ExecID: execID}
	for {
		res, err := s.ReadExec(ctx, req)
		if err != nil {
			return logsError(err)
		}
		if res.Dropped > 0 {
			fmt.Fprintf(a.stderr, "workcell: %s of the output is no longer kept%s\n", droppedPart(req.SinceSeq), wholeOutput(ctx, s, execID))
		}
		for _, c := range res.Chunks {
			w := a.stdout
			if c.Stream == "stderr" {
				w = a.stderr
			}
			if _, err := w.Write(c.Data); err != nil {
				return err
			}
		}
		req.SinceSeq = res.NextSeq
		if res.Done || !o.follow && len(res.Chunks) == 0 {
			return nil
		}
		if o.follow {
			req.Wait = followWait
		}
	}
}

// droppedPart returns which part is missing when the reader has come to a sequence number.
func droppedPart(since int64) string {
	if since == 0 {
		return "the beginning"
	}
	return "some" // it was written faster than it was read
}

// wholeOutput returns where the sandbox has the whole output of a command as files, if it has.
func wholeOutput(ctx context.Context, s *session.Session, execID string) string {
	for _, stream := range []string{"stdout", "stderr"} {
		name := ".workcell/output/" + execID + "." + stream
		if _, err := s.StatFile(ctx, name); err == nil {
			return fmt.Sprintf(", see `workcell sessions cp %s:%s -`", s.ID(), name)
		}
	}
	return ""
}

// logsError keeps a missing command from being taken for a missing sandbox.
func logsError(err error) error {
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return fail(exitFailed, err, "`workcell sessions logs SANDBOX` lists the commands")
	case errors.Is(err, backend.ErrInvalid):
		return fail(exitFailed, err, "`workcell sessions logs SANDBOX` lists the commands; what one of `sessions exec` wrote went to where that was called, and is not kept")
	}
	return err
}
