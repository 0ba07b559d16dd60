package tools

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/session"
)

// Defaults and bounds of the exec tools.
const (
	maxSeconds       = int64(session.MaxExecTimeout / time.Second)
	defaultYield     = 10 * time.Second
	maxYieldMS       = int64(session.MaxExecTimeout / time.Millisecond)
	defaultChunks    = 100
	maxChunks        = 1000
	maxReadWaitMS    = 60_000
	defaultWait      = 120 * time.Second
	shellDescription = "Give cmd (program and arguments, delivered verbatim) or command (one line for /bin/sh -c), not both."
)

func (b *binding) execCommand(ctx context.Context, in execInput) (execOutput, error) {
	yield := cmp.Or(time.Duration(b.cfg.YieldMS)*time.Millisecond, wish.Yield(ctx), defaultYield)
	req, fail := execRequest(in, yield, excerptOf(b.streamChars))
	if fail != nil {
		return execOutput{}, fail
	}
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return execOutput{}, err
	}
	res, err := s.Exec(ctx, req)
	if err != nil {
		return execOutput{}, err
	}
	b.track(s, res)
	return newExecOutput(res, s.Info()), nil
}

// execRequest checks the arguments of sandbox_exec; yield is for a call that names none.
func execRequest(in execInput, yield time.Duration, bounds excerpt) (session.ExecRequest, *ToolError) {
	var none session.ExecRequest
	if fail := commandGiven(in); fail != nil {
		return none, fail
	}
	if in.YieldMS != nil {
		yield = time.Duration(*in.YieldMS) * time.Millisecond
	}
	req := session.ExecRequest{
		Argv: in.Cmd, Command: in.Command, Dir: in.Cwd, Env: in.Env, Timeout: time.Duration(in.TimeoutSeconds) * time.Second,
		Yield: yield, Background: in.Stream || yield == 0, StdinOpen: in.Stream, HeadBytes: bounds.head, TailBytes: bounds.tail,
	}
	if in.Stdin != nil {
		req.Stdin = []byte(*in.Stdin)
	}
	return req, nil
}

func commandGiven(in execInput) *ToolError {
	switch {
	case len(in.Cmd) > 0 && in.Command != "":
		return failure(CodeInvalid, "both cmd and command are given").withRemediation(shellDescription)
	case len(in.Cmd) == 0 && in.Command == "":
		return failure(CodeInvalid, "neither cmd nor command is given").withRemediation(shellDescription)
	case len(in.Cmd) > 0 && in.Cmd[0] == "":
		return failure(CodeInvalid, "cmd[0], the program, is empty").withRemediation(shellDescription)
	}
	var list []string
	if strings.HasPrefix(strings.TrimSpace(in.Command), "[\"") && json.Unmarshal([]byte(in.Command), &list) == nil {
		return failure(CodeInvalid, "command is a JSON list written as text").withRemediation("Pass the list itself as cmd.")
	}
	return nil
}

func newExecOutput(res session.ExecResult, info session.Info) execOutput {
	stdout, stderr := show(res.Stdout, "stdout", true), show(res.Stderr, "stderr", true)
	return execOutput{
		ExecID: res.ExecID, Status: string(res.Status), ExitCode: exitCode(res.Status, res.ExitCode, res.Signal), Signal: res.Signal,
		Stdout: stdout.text, Stderr: withNotice(stderr.text, outcomeNotice(res, info)),
		Truncated: stdout.truncated || stderr.truncated, StdoutBytes: res.StdoutBytes, StderrBytes: res.StderrBytes,
		OutputPath: cmp.Or(stdout.path, stderr.path), DurationMS: res.Duration.Milliseconds(),
		QuotaExceeded: res.QuotaExceeded,
	}
}

func (b *binding) execRead(ctx context.Context, in execReadInput) (execReadOutput, error) {
	s, err := b.execSandbox(ctx, in.SandboxID, in.ExecID)
	if err != nil {
		return execReadOutput{}, err
	}
	res, err := s.ReadExec(ctx, session.ReadExecRequest{
		ExecID: in.ExecID, SinceSeq: in.SinceSeq, MaxChunks: int(cmp.Or(in.MaxChunks, defaultChunks)),
		Wait: time.Duration(in.WaitMS) * time.Millisecond,
	})
	if err != nil {
		return execReadOutput{}, unknownExec(err)
	}
	out := execReadOutput{Chunks: []execChunk{}, Done: res.Done, NextSeq: res.NextSeq, Dropped: res.Dropped}
	size := 0
	for _, c := range res.Chunks {
		// One answer stays readable: the rest is for the next call.
		if size += len(c.Data); size > int(b.streamChars) && len(out.Chunks) > 0 {
			out.Done, out.NextSeq = false, out.Chunks[len(out.Chunks)-1].Seq
			break
		}
		chunk := execChunk{Seq: c.Seq, Stream: c.Stream}
		if utf8.Valid(c.Data) {
			chunk.Text = string(c.Data)
		} else {
			chunk.DataB64 = base64.StdEncoding.EncodeToString(c.Data)
		}
		out.Chunks = append(out.Chunks, chunk)
	}
	return out, nil
}

func (b *binding) execWait(ctx context.Context, in execWaitInput) (execWaitOutput, error) {
	s, err := b.execSandbox(ctx, in.SandboxID, in.ExecID)
	if err != nil {
		return execWaitOutput{}, err
	}
	res, err := s.WaitExec(ctx, in.ExecID, cmp.Or(time.Duration(in.TimeoutSeconds)*time.Second, defaultWait))
	if err != nil {
		return execWaitOutput{}, unknownExec(err)
	}
	return execWaitOutput{Done: res.Done(), execOutput: newExecOutput(res, s.Info())}, nil
}

func (b *binding) execWrite(ctx context.Context, in execWriteInput) (execWriteOutput, error) {
	var data []byte
	switch {
	case in.Text != nil && in.DataB64 != "":
		return execWriteOutput{}, failure(CodeInvalid, "both text and data_b64 are given")
	case in.Text != nil:
		data = []byte(*in.Text)
	case in.DataB64 != "":
		var fail *ToolError
		if data, fail = fromBase64("data_b64", in.DataB64); fail != nil {
			return execWriteOutput{}, fail
		}
	case !in.EOF:
		return execWriteOutput{}, failure(CodeInvalid, "nothing to write: give text, data_b64 or eof")
	}
	s, err := b.execSandbox(ctx, in.SandboxID, in.ExecID)
	if err != nil {
		return execWriteOutput{}, err
	}
	if err := s.WriteExec(ctx, in.ExecID, data, in.EOF); err != nil {
		e := ErrorOf(unknownExec(err))
		if e.Code == CodeInvalid || e.Code == CodeClosed {
			e = e.withRemediation("Standard input is open only for a command that still runs and was started with stream: true.")
		}
		return execWriteOutput{}, e
	}
	return execWriteOutput{OK: true}, nil
}

func (b *binding) execKill(ctx context.Context, in execKillInput) (execKillOutput, error) {
	s, err := b.execSandbox(ctx, in.SandboxID, in.ExecID)
	if err != nil {
		return execKillOutput{}, err
	}
	st, err := s.KillExec(ctx, in.ExecID, signalName(in.Signal))
	if err != nil {
		return execKillOutput{}, unknownExec(err)
	}
	return execKillOutput{OK: true, ExitCode: exitCode(st.Status, st.ExitCode, st.Signal), Status: string(st.Status)}, nil
}

// signalName returns the name of a signal as sandboxes know it. Models also write numbers, which mean those of Linux
// wherever this program runs.
func signalName(text string) string {
	text = strings.ToUpper(strings.TrimSpace(text))
	names := signalNames()
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= len(names) {
		return "SIG" + names[n-1]
	}
	return text
}

// execSandbox returns the sandbox of a call about an exec.
func (b *binding) execSandbox(ctx context.Context, sandboxID, execID string) (*session.Session, error) {
	if execID == "" {
		return nil, failure(CodeInvalid, "exec_id is empty").withRemediation("Pass the exec_id that sandbox_exec gave.")
	}
	return b.sandbox(ctx, sandboxID)
}

// unknownExec returns a better answer for an exec that the sandbox does not know.
func unknownExec(err error) error {
	if e := ErrorOf(err); e.Code == CodeNotFound {
		return failure(CodeNotFound, "there is no such exec in this sandbox").
			withRemediation("Pass the exec_id that sandbox_exec gave, with the same sandbox.")
	}
	return err
}

// fromBase64 reads base64 with or without padding, of either alphabet.
func fromBase64(name, text string) ([]byte, *ToolError) {
	plain := strings.NewReplacer("-", "+", "_", "/", "\n", "", "\r", "", " ", "").Replace(strings.TrimRight(text, "=\r\n "))
	data, err := base64.RawStdEncoding.DecodeString(plain)
	if err != nil {
		return nil, failure(CodeInvalid, "%s is not base64", name)
	}
	return data, nil
}
