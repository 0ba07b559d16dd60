package mcpserver

import (
	"slices"
	"strconv"
	"strings"
)

// wrapper says how a program that runs another one takes its own arguments. Options are named by their letter or by
// their long name; of long ones the beginning is enough, as for the programs themselves.
type wrapper struct {
	short    string // letters of options with a value, in the same word or the next
	attached string // letters of options whose value can stand in the same word alone
	long     string // long options with a value, after = or in the next word
	flags    string // long options without one that are the beginning of one of those
	operands int    // arguments before the command
	number   bool   // those are numbers, and may be left out
	assigns  bool   // NAME=VALUE may stand before the command

	idle     string // options with which it runs nothing
	script   string // options whose value is a shell's script
	splits   string // options whose value is the beginning of its arguments
	replaces string // options whose value stands for words that it reads
	appends  bool   // words that it reads come after the command
	joins    bool   // its command is a shell's script, in one word or many
	verbatim string // options with which it is not
	login    bool   // what would be its command are a shell's arguments
	shell    bool   // it runs a shell when no command is given
}

// placeholder is what find and xargs put names in the place of.
const placeholder = "{}"

// wrapperOf gives what is known of a program that runs the command in its arguments.
func wrapperOf(program string) (wrapper, bool) {
	switch program {
	case "builtin", "busybox", "catchsegv", "jobs", "nohup", "setsid", "toybox", "!": // bash takes "time ! x"
		return wrapper{}, true
	case "chroot":
		return wrapper{long: "groups userspec", operands: 1, shell: true}, true
	case "chrt":
		return wrapper{short: "DPT", long: "sched-deadline sched-period sched-runtime", operands: 1, number: true, idle: "m max p pid"}, true
	case "command":
		return wrapper{idle: "V v"}, true
	case "doas":
		return wrapper{short: "Cau", shell: true}, true
	case "env":
		return wrapper{short: "CPSau", long: "argv0 chdir split-string unset", assigns: true, splits: "S split-string"}, true
	case "exec":
		return wrapper{short: "a"}, true
	case "flock":
		return wrapper{short: "Ecw", long: "command conflict-exit-code timeout wait", operands: 1, script: "c command"}, true
	case "ionice":
		return wrapper{short: "Pcnpu", long: "class classdata pgid pid uid", idle: "P p pgid pid u uid"}, true
	case "nice":
		return wrapper{short: "n", long: "adjustment"}, true
	case "nsenter":
		return wrapper{short: "GNSt", attached: "CTUWimnpruw", long: "net-socket setgid setuid target", flags: "net", shell: true}, true
	case "script":
		return wrapper{short: "BEIOTcmo", attached: "t", operands: 1, script: "c command", shell: true,
			long: "command echo log-in log-io log-out log-timing logging-format output-limit"}, true
	case "stdbuf":
		return wrapper{short: "eio", long: "error input output"}, true
	case "strace":
		return wrapper{short: "EIOPSUXabeopsu", flags: "summary", long: "abbrev argv0 attach columns const-print-style detach-on env fault inject " +
			"interruptible kvm output raw read signal status string-limit summary-columns summary-sort-by " +
			"summary-syscall-overhead syscall-limit trace trace-fds trace-path user verbose write"}, true
	case "su":
		return wrapper{short: "Gcgsw", operands: 1, script: "c command session-command", login: true, shell: true,
			long: "command group session-command shell supp-group whitelist-environment"}, true
	case "sudo":
		return wrapper{short: "CDRTUaghprtu", assigns: true, idle: "l list V version v validate", shell: true,
			long: "chdir chroot close-from command-timeout group host other-user prompt role type user"}, true
	case "taskset":
		return wrapper{operands: 1, idle: "p pid"}, true
	case "time":
		return wrapper{short: "fo", long: "format output"}, true
	case "timeout":
		return wrapper{short: "ks", long: "kill-after signal", operands: 1}, true
	case "unshare":
		return wrapper{short: "GRSlw", shell: true, long: "boottime load-interp map-group map-groups map-user map-users monotonic " +
			"owner propagation root setgid setgroups setuid wd"}, true
	case "watch":
		return wrapper{short: "nqs", long: "equexit interval shotsdir", joins: true, verbatim: "x exec"}, true
	case "xargs":
		return wrapper{short: "EIJLPRSadns", attached: "eil", appends: true, replaces: "I J i replace",
			long: "arg-file delimiter max-args max-chars max-procs process-slot-var"}, true
	}
	return wrapper{}, false
}

// option is an option of a wrapper.
type option struct {
	name  string
	long  bool
	value word
}

// is tells whether the option is one of these.
func (o option) is(names string) bool {
	return slices.ContainsFunc(strings.Fields(names), func(name string) bool {
		if o.long && len(name) > 1 {
			return strings.HasPrefix(name, o.name)
		}
		return o.name == name
	})
}

// split takes a wrapper's own arguments away from the command that follows them.
func (w wrapper) split(args []word) (options []option, rest []word) {
	operands, over := w.operands, false
	for len(args) > 0 {
		text := args[0].text
		switch {
		case !over && args[0].static && text == "--":
			over = true
			args = args[1:]
		case !over && strings.HasPrefix(text, "-"):
			found, next, ok := w.options(args[0], args[1:])
			if !ok {
				return options, args
			}
			options = append(options, found...)
			args = next
		case w.assigns && strings.HasPrefix(text, "/") && strings.Contains(text, "="): // a setting to env, a program to sudo
			return options, append([]word{{text: text}}, args[1:]...)
		case w.assigns && strings.Contains(text, "="):
			args = args[1:]
		case operands > 0 && w.number && args[0].static && !isNumber(text):
			return options, args
		case operands > 0:
			operands--
			args = args[1:]
		default:
			return options, args
		}
	}
	return options, nil
}

func isNumber(text string) bool {
	_, err := strconv.Atoi(text)
	return err == nil
}

// options gives the options that stand in a word, with their values, and the arguments after those; ok is false for a
// word of which too little is known.
func (w wrapper) options(arg word, next []word) (found []option, after []word, ok bool) {
	value := func(text string) word {
		if text != "" || !arg.static || len(next) == 0 {
			return word{text: text, static: arg.static}
		}
		v := next[0]
		next = next[1:]
		return v
	}
	if name, long := strings.CutPrefix(arg.text, "--"); long {
		name, text, whole := strings.Cut(name, "=")
		o := option{name: name, long: true, value: word{text: text, static: arg.static}}
		if !whole && o.is(w.long) && !slices.Contains(strings.Fields(w.flags), name) {
			o.value = value("")
		}
		return []option{o}, next, whole || arg.static
	}
	letters := arg.text[1:]
	for i := range len(letters) {
		o := option{name: letters[i : i+1]}
		switch {
		case strings.Contains(w.short, o.name):
			o.value = value(letters[i+1:])
			return append(found, o), next, true
		case strings.Contains(w.attached, o.name):
			o.value = word{text: letters[i+1:], static: arg.static}
			return append(found, o), next, true
		}
		found = append(found, o)
	}
	return found, next, arg.static
}

// replaced gives the words of a command where those that hold mark are computed.
func replaced(words []word, mark word) []word {
	if mark.static && mark.text == "" {
		mark.text = placeholder
	}
	out := slices.Clone(words)
	for i, w := range out {
		if !mark.static || strings.Contains(w.text, mark.text) {
			out[i].static = false
		}
	}
	return out
}
