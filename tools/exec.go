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

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Defaults and bounds of the exec tools.
const (
	maxSeconds    = int64(sandbox.MaxExecTimeout / time.Second)
	defaultYield  = 10 * time.Second
	maxYieldMS    = int64(sandbox.MaxExecTimeout / time.Millisecond)
	defaultChunks = 100
	maxChunks     = 1000
	maxReadWaitMS = 60_000
	defaultWait   = 120 * time.Second
)

// commandHint tells models how to pass a command.
const commandHint = "Pass cmd (program and arguments, delivered verbatim) or command (one line for /bin/sh -c), " +
	"not both."

// execCommand handles sandbox_exec. It runs a command, or a program in an interpreter.
func (b *binding) execCommand(ctx context.Context, in execInput) (out execOutput, err error) {
	if in.Interpreter != "" || in.Code != "" {
		return b.interpret(ctx, in)
	}
	if err := checkCommand(in); err != nil {
		return out, err
	}
	req := b.execRequest(ctx, in)
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	host, err := b.hosts.grant(ctx, s, &req)
	if err != nil {
		return out, err
	}
	res, err := s.Exec(ctx, req)
	if err == nil && !req.Background {
		res, err = outlast(ctx, s, res)
	}
	// A failed command may have made calls. Their saved results must be removed later.
	counts := b.recordHostCalls(ctx, host, res)
	if err != nil {
		return out, err
	}
	b.track(s, res)
	out = newExecOutput(res, b.evidence(ctx, s))
	out.HostCalls = counts
	return out, nil
}

// execRequest returns the command of sandbox_exec, or the settings for a program in an interpreter.
func (b *binding) execRequest(ctx context.Context, in execInput) sandbox.ExecRequest {
	yield := b.yield(ctx, in)
	head, tail := excerpt(b.streamChars)
	req := sandbox.ExecRequest{
		Argv: in.Cmd, Command: in.Command, Dir: in.Cwd, Env: in.Env, Timeout: time.Duration(in.TimeoutSeconds) * time.Second,
		Yield: yield, Background: in.Stream || yield == 0, StdinOpen: in.Stream, HeadBytes: head, TailBytes: tail,
	}
	if in.Stdin != nil {
		req.Stdin = []byte(*in.Stdin)
	}
	return req
}

// yield returns the time after which a call returns even if the command is still running.
func (b *binding) yield(ctx context.Context, in execInput) time.Duration {
	if in.YieldMS != nil {
		return time.Duration(*in.YieldMS) * time.Millisecond
	}
	return cmp.Or(time.Duration(b.cfg.YieldMS)*time.Millisecond, wish.Yield(ctx), defaultYield)
}

// checkCommand returns an error unless the input contains exactly one command.
func checkCommand(in execInput) error {
	switch {
	case len(in.Cmd) > 0 && in.Command != "":
		return toolspec.Failf(toolspec.CodeInvalid, "cmd and command cannot be combined").WithRemediation(commandHint)
	case len(in.Cmd) == 0 && in.Command == "":
		return toolspec.Failf(toolspec.CodeInvalid, "cmd or command is required").WithRemediation(commandHint)
	case len(in.Cmd) > 0 && in.Cmd[0] == "":
		return toolspec.Failf(toolspec.CodeInvalid, "cmd[0], the program, is empty").WithRemediation(commandHint)
	}
	var list []string
	if strings.HasPrefix(strings.TrimSpace(in.Command), "[\"") && json.Unmarshal([]byte(in.Command), &list) == nil {
		return toolspec.Failf(toolspec.CodeInvalid, "command is a JSON list written as text").
			WithRemediation("Pass the list itself as cmd.")
	}
	return nil
}

// newExecOutput converts the result of a command. It adds a notice to the standard error if the command did not end
// normally or left processes behind.
func newExecOutput(res sandbox.ExecResult, evidence sandbox.Evidence) execOutput {
	stdout, stderr := show(res.Stdout, "stdout", true), show(res.Stderr, "stderr", true)
	notice := outcomeNotice(res)
	if notice == "" && res.Leaked {
		notice = "[workcell: background processes of this command are still running; to kill them, use sandbox_exec_kill]\n"
	}
	return execOutput{
		ExecID: res.ExecID, Status: string(res.Status), ExitCode: exitCode(res.Status, res.ExitCode, res.Signal),
		Signal: res.Signal,
		Stdout: stdout.text, Stderr: withNotice(stderr.text, notice),
		Truncated: stdout.truncated || stderr.truncated, StdoutBytes: res.StdoutBytes, StderrBytes: res.StderrBytes,
		OutputPath: cmp.Or(stdout.path, stderr.path), DurationMS: res.Duration.Milliseconds(),
		QuotaExceeded: res.QuotaExceeded, hostCounts: hostCounts{Refused: res.Refused}, Evidence: evidence,
	}
}

// execRead handles sandbox_exec_read. It returns recorded output, at most streamChars bytes in one call.
func (b *binding) execRead(ctx context.Context, s *session.Session, in execReadInput) (out execReadOutput, err error) {
	res, err := s.Command(in.ExecID).Read(ctx, sandbox.ReadRequest{
		SinceSeq: in.SinceSeq, MaxChunks: int(cmp.Or(in.MaxChunks, defaultChunks)),
		Wait: time.Duration(in.WaitMS) * time.Millisecond,
	})
	if err != nil {
		return out, unknownExec(err)
	}
	out = execReadOutput{Done: res.Done, NextSeq: res.NextSeq, Dropped: res.Dropped}
	out.Chunks = readChunks(res.Chunks, int(b.streamChars))
	if n := len(out.Chunks); n < len(res.Chunks) { // the next call returns the rest
		out.Done, out.NextSeq = false, out.Chunks[n-1].Seq
	}
	return out, nil
}

// readChunks converts chunks of at most limit bytes, but at least one, to keep a result readable.
func readChunks(chunks []sandbox.Chunk, limit int) []execChunk {
	list, size := []execChunk{}, 0
	for _, c := range chunks {
		if size += len(c.Data); size > limit && len(list) > 0 {
			break
		}
		chunk := execChunk{Seq: c.Seq, Stream: c.Stream}
		if utf8.Valid(c.Data) {
			chunk.Text = string(c.Data)
		} else {
			chunk.DataB64 = base64.StdEncoding.EncodeToString(c.Data)
		}
		list = append(list, chunk)
	}
	return list
}

// execWait handles sandbox_exec_wait. It returns the result of a command, or the current result after the time.
func (b *binding) execWait(ctx context.Context, s *session.Session, in execWaitInput) (out execWaitOutput, err error) {
	res, err := s.Command(in.ExecID).Wait(ctx, cmp.Or(time.Duration(in.TimeoutSeconds)*time.Second, defaultWait))
	if err != nil {
		return out, unknownExec(err)
	}
	if out.Done = res.Done(); out.Done {
		out.execOutput, err = b.ended(ctx, s, res)
	} else {
		out.execOutput = newExecOutput(res, b.evidence(ctx, s))
	}
	out.HostCalls = b.recordHostCalls(ctx, b.granted(in.ExecID), res)
	return out, err
}

// execWrite handles sandbox_exec_write. It writes to the standard input of a command.
func (b *binding) execWrite(ctx context.Context, in execWriteInput) (done, error) {
	data, given, err := eitherForm("text", in.Text, "data_b64", in.DataB64)
	if err != nil {
		return done{}, err
	}
	if !given && !in.EOF {
		return done{}, toolspec.Failf(toolspec.CodeInvalid, "nothing to write; pass text, data_b64, or eof")
	}
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return done{}, err
	}
	if err := s.Command(in.ExecID).Write(ctx, data, in.EOF); err != nil {
		e := toolspec.ErrorOf(unknownExec(err))
		if e.Code == toolspec.CodeInvalid || e.Code == toolspec.CodeClosed {
			e = e.WithRemediation("Standard input is open only for a running command that was started with stream: true.")
		}
		return done{}, e
	}
	return done{OK: true}, nil
}

// execKill handles sandbox_exec_kill. It sends a signal to the processes of a command.
func execKill(ctx context.Context, s *session.Session, in execKillInput) (out execKillOutput, err error) {
	st, err := s.Command(in.ExecID).Signal(ctx, signalName(in.Signal))
	if err != nil {
		return out, unknownExec(err)
	}
	out.OK, out.ExitCode, out.Status = true, exitCode(st.Status, st.ExitCode, st.Signal), string(st.Status)
	return out, nil
}

// signalName returns the sandbox's name for a signal. Models may also send numbers, which are Linux signal numbers on
// every host.
func signalName(text string) string {
	text = strings.ToUpper(strings.TrimSpace(text))
	names := sandbox.Signals()
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= len(names) {
		return names[n-1]
	}
	return text
}

// unknownExec replaces the error for an unknown exec with a more helpful error.
func unknownExec(err error) error {
	if err == nil || toolspec.ErrorOf(err).Code != toolspec.CodeNotFound {
		return err
	}
	return toolspec.Failf(toolspec.CodeNotFound, "exec_id not found in this sandbox").
		WithRemediation("Pass the exec_id from sandbox_exec, with the same sandbox.")
}

// base64Alphabet converts base64 to the standard alphabet without whitespace.
var base64Alphabet = strings.NewReplacer("-", "+", "_", "/", "\n", "", "\r", "", " ", "")

// eitherForm returns bytes given as text or as base64 in either alphabet, with or without padding. given is false if
// neither form is given.
func eitherForm(textName string, text *string, dataName string, data *string) (b []byte, given bool, err error) {
	hasText, hasData := text != nil && *text != "", data != nil && *data != ""
	if hasText && hasData {
		return nil, false, toolspec.Failf(toolspec.CodeInvalid, "%s and %s cannot be combined", textName, dataName)
	}
	if hasText {
		return []byte(*text), true, nil
	}
	if !hasData { // an empty file or no data
		return []byte{}, text != nil || data != nil, nil
	}
	b, err = base64.RawStdEncoding.DecodeString(base64Alphabet.Replace(strings.TrimRight(*data, "=\r\n ")))
	if err != nil {
		return nil, false, toolspec.Failf(toolspec.CodeInvalid, "%s is not valid base64", dataName)
	}
	return b, true, nil
}
