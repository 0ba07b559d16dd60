package toolspec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Code is the class of a failure, as models and clients see it. Codes returns all codes.
type Code string

// Codes of failures.
const (
	CodeNotFound    Code = "not_found"         // does not exist, or the caller may not know of it
	CodeExists      Code = "exists"            // the resource already exists
	CodeInvalid     Code = "invalid_argument"  // the call can never succeed with these arguments
	CodePermission  Code = "permission_denied" // the sandbox's user has no permission, or a policy forbids it
	CodeTooLarge    Code = "too_large"         // a documented size limit was exceeded
	CodeTimeout     Code = "timeout"           // a time limit of the call has passed
	CodeLost        Code = "sandbox_lost"      // the sandbox died, and its contents are lost
	CodeClosed      Code = "closed"            // the sandbox was closed
	CodeCapacity    Code = "capacity"          // the maximum number of sandboxes or processes already exists
	CodeUnavailable Code = "unavailable"       // the engine or the image is currently unavailable
	CodeUnsupported Code = "unsupported"       // this engine or version does not support it
	CodeQuota       Code = "quota_exceeded"    // a disk or memory is full, or no more calls are allowed
	CodeToolFailed  Code = "tool_failed"       // a host tool sandboxed code called has failed
	CodeInternal    Code = "internal"          // a bug in Workcell
)

// remediations contains, for each code in the order of the documentation, the default advice for a model.
var remediations = []struct {
	code Code
	text string
}{
	{CodeNotFound, "Check the ID or path. sandbox_fs_list lists files. IDs of other runs are not visible."},
	{CodeExists, "Use another name, or replace the existing one."},
	{CodeInvalid, "Correct the arguments as the message describes and call the tool again."},
	{CodePermission, "Work below /workspace or /tmp as the current user. You cannot change the policy from a run."},
	{CodeTooLarge, "Split the work into smaller pieces; the message names the limit."},
	{CodeTimeout, "Do less per call, or pass a larger timeout_seconds."},
	{CodeLost, "Call sandbox_open for a new sandbox. If its answer does not say that files were kept, write them again."},
	{CodeClosed, "Call sandbox_open to continue in an open sandbox."},
	{CodeCapacity, "Wait for running commands to exit or kill some, then try again: sandbox_exec_kill also kills " +
		"processes that a finished command left running."},
	{CodeUnavailable, "Try again in a moment; if it fails again, report that the sandbox is unavailable."},
	{CodeUnsupported, "Continue without it, and mention it in the answer."},
	{CodeQuota, "Delete files that you no longer need, then try again. In the workspace, use sandbox_fs_delete, which " +
		"works even if the disk is full; elsewhere, use rm."},
	{CodeToolFailed, "Follow the message, which comes from the tool: correct the arguments, or continue without it."},
	{CodeInternal, "Try once more; if it fails again, report the message."},
}

// Codes returns all codes.
func Codes() []Code {
	var codes []Code
	for _, r := range remediations {
		codes = append(codes, r.code)
	}
	return codes
}

// Remediation returns the default advice for failures with this code.
func (c Code) Remediation() string {
	for _, r := range remediations {
		if r.code == c {
			return r.text
		}
	}
	return CodeInternal.Remediation()
}

// Error is the `error` of an output. It never contains paths of the host.
type Error struct {
	Code        Code   `json:"code" jsonschema_description:"class of the failure"`
	Message     string `json:"message" jsonschema_description:"what went wrong"`
	Remediation string `json:"remediation" jsonschema_description:"what to do about it"`
	Retryable   bool   `json:"retryable" jsonschema_description:"the same call may succeed later"`
	// Rule is the name of the refusing rule, for audit records. It is empty for other failures. The message also contains
	// it.
	Rule string `json:"-"`
}

// Error returns "code: message".
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Failf returns a failure with the default advice of its code.
func Failf(code Code, format string, args ...any) *Error {
	return &Error{
		Code: code, Message: fmt.Sprintf(format, args...), Remediation: code.Remediation(),
		Retryable: code == CodeCapacity || code == CodeUnavailable,
	}
}

// WithRemediation replaces the advice if remediation is not empty, and returns e.
func (e *Error) WithRemediation(remediation string) *Error {
	e.Remediation = cmp.Or(remediation, e.Remediation)
	return e
}

// Plain returns e, or a copy without default advice that names tools of code mode. Agents in other modes do not have them.
func (e *Error) Plain() *Error {
	plain := map[Code]string{
		CodeNotFound: "Check the path.",
		CodeLost:     "Call the tool again. If files were lost, write them again.",
		CodeClosed:   "Call the tool again.",
		CodeCapacity: "Try again later.",
		CodeQuota:    "Delete files that you no longer need, or write smaller files, then try again.",
	}[e.Code]
	if plain == "" || e.Remediation != e.Code.Remediation() {
		return e
	}
	p := *e
	return p.WithRemediation(plain)
}

// sentinels maps errors of packages backend and session to codes. If several match, the first one applies.
var sentinels = []struct {
	err  error
	code Code
}{
	{backend.ErrClosed, CodeClosed},
	{backend.ErrLost, CodeLost},
	{backend.ErrImage, CodeUnavailable},
	{backend.ErrNotFound, CodeNotFound},
	{backend.ErrExists, CodeExists},
	{backend.ErrInvalid, CodeInvalid},
	{backend.ErrPermission, CodePermission},
	{backend.ErrTooLarge, CodeTooLarge},
	{backend.ErrUnsupported, CodeUnsupported},
	{backend.ErrCapacity, CodeCapacity},
	{backend.ErrBusy, CodeCapacity},
	{backend.ErrNoRoom, CodeQuota},
	{backend.ErrQuota, CodeQuota},
	{backend.ErrTimeout, CodeTimeout},
	{backend.ErrUnavailable, CodeUnavailable},
	{backend.ErrEnvironment, CodeUnavailable},
	{backend.ErrVersion, CodeInternal},
	{backend.ErrProtocol, CodeInternal},
	{context.DeadlineExceeded, CodeTimeout},
}

// ErrorOf converts err for models. Only texts of known errors are included; operators can find other texts in the log.
func ErrorOf(err error) *Error {
	if known, ok := errors.AsType[*Error](err); ok {
		return known
	}
	code := CodeInternal
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			code = s.code
			break
		}
	}
	if code == CodeInternal {
		return Failf(code, "the operation failed inside Workcell")
	}
	e := Failf(code, "%s", plainText(err))
	if code == CodeUnavailable {
		e.Message = hostAddress.ReplaceAllString(e.Message, "$1<address>")
	}
	var launch *sandbox.LaunchError
	var conflict *session.ConflictError
	var install *session.InstallError
	switch {
	case errors.As(err, &install):
		e.Retryable = false
		return e.WithRemediation(installRemediation(install))
	case errors.As(err, &launch):
		return e.WithRemediation(launchRemediation(launch.Reason))
	case errors.As(err, &conflict):
		e.Message = fmt.Sprintf("the sandbox %q of this run already exists with different settings: %s", conflict.Key.Name,
			strings.Join(conflict.Fields, ", "))
		return e.WithRemediation("Agents that share a sandbox must use the same settings: report this. If you have " +
			"the tool sandbox_open, use another session_key.")
	case errors.Is(err, backend.ErrNoRoom):
		return e.WithRemediation("Report that the host's disk is full: the operator must free space or configure a " +
			"smaller workspace_mb.")
	case errors.Is(err, backend.ErrImage):
		e.Retryable = false
		return e.WithRemediation("Report that the image is missing: the agent's author has to pull it, build it, or use " +
			"another image.")
	}
	return e
}

// hostAddress matches addresses of the host's network in error messages of an engine without access to a registry: the
// addresses of its resolver, the proxy, or the engine itself.
var hostAddress = regexp.MustCompile(`(\bon |\b(?:tcp|udp)[46]? |->)(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9A-Za-z:.%]+\])(?::[0-9]+)?`)

// plainText returns the text of err without the operation and the driver, which mean nothing to a model.
func plainText(err error) string {
	if wrapped, ok := errors.AsType[*backend.Error](err); ok {
		err = wrapped.Err
	}
	return err.Error()
}

func installRemediation(e *session.InstallError) string {
	text := "Report it: the agent's author has to change its pip_packages, npm_packages, or setup. Until then the " +
		"sandbox cannot be opened."
	private := func(r sandbox.EgressRefusal) bool { return strings.HasPrefix(r.Rule, "address: ") }
	switch {
	case slices.ContainsFunc(e.Refused, private):
		text += " A registry with a private address requires --egress-allow-private of the operator."
	case len(e.Refused) > 0 || strings.HasPrefix(e.Step, "setup"):
		text += " Hosts other than the package registries must be listed in setup.network.allow."
	case e.Step == "pip install":
		text += " Only wheels are installed: a package or version without one is not found."
	}
	return text
}

func launchRemediation(reason sandbox.LaunchReason) string {
	return cmp.Or(map[sandbox.LaunchReason]string{
		sandbox.LaunchNotFound: "The program is not in the image: use another program or runtime, or pass shell " +
			"builtins as command.",
		sandbox.LaunchNotExecutable: "Run it with its interpreter, or make it executable with chmod.",
		sandbox.LaunchBadDir:        "Create the directory first, or omit cwd to work in /workspace.",
		sandbox.LaunchTooLong:       "Write the arguments to a file with sandbox_fs_write and let the program read it.",
		sandbox.LaunchNoResources:   CodeCapacity.Remediation(),
	}[reason], CodeInvalid.Remediation())
}
