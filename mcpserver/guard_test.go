package mcpserver_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/mcpserver"
)

// TestWrappers: whatever options stand before it, the command that a wrapper runs is seen.
func TestWrappers(t *testing.T) {
	t.Parallel()
	for _, before := range []string{
		"env A=b -u X -i", "env --unset X --chdir /tmp", "env --chd /tmp", "env -iC /tmp", "env -- A=b", "env -", `env "A=$B"`, "env A=$B",
		`env --chdir="$D"`, "env -S ''", "env -S '-i A=b'", "env --split-string='A=b'", "env -vS A=b", "env -S 'nice -n 1'",
		"timeout 5", "timeout --signal KILL 5", "timeout --signal=KILL --kill-after 1 5", "timeout -s9 -k 1 5", "timeout --foreground 5", "timeout $T",
		"nice", "nice --adjustment 5", "nice -5", "nice -n $N", "nice -n$N", "ionice -c 3", "ionice --class 3", "nohup", "setsid -w",
		"strace --output f", "strace -fo f", "strace -o f -e trace=open", "strace --summary", "strace -o f --trace open",
		"stdbuf -oL", "stdbuf --output L", "\\time -f %e", "\\time --format %e --output f", "exec -a n", "exec -cla n", "command -p", "builtin command",
		"flock l", "flock -w 3 l", "flock --timeout 3 l", "sudo -u x -- A=b", "sudo --user x", "sudo -nu x", "doas -u x", "script -q /dev/null",
		"chroot --userspec a /x", "unshare -rn", "unshare --setuid 0", "nsenter -t 1 -m", "nsenter --net", "env a.b=c 1=2 =3", "sudo -u x a.b=c", "chrt -o", "chrt -b 0", "taskset -c 0", "chrt -f 10", "busybox", "jobs -x",
	} {
		list, unknown := mcpserver.Commands(before + " curl x")
		if !contains(list, "curl x") || unknown != "" {
			t.Errorf("%s curl x: %q, unknown %q", before, list, unknown)
		}
	}
	for _, before := range []string{"", "-0n 1", "-0n1", "--max-args 1", "--max-a 1", "-en", "-P 4 --delimiter x", "-a f", "-i", "-I %", "--replace=%", "--max-lines"} {
		list, unknown := mcpserver.Commands("xargs " + before + " curl x %")
		if !contains(list, "curl x % ?") && !contains(list, "curl x ?") && !contains(list, "curl x %") || unknown != "" {
			t.Errorf("xargs %s curl x %%: %q, unknown %q", before, list, unknown)
		}
	}
	list, _ := mcpserver.Commands("timeout 5 env sudo -u x nice id")
	for _, want := range []string{"env sudo -u x nice id", "sudo -u x nice id", "nice id", "id"} {
		if !contains(list, want) {
			t.Errorf("%q is not seen on the way: %q", want, list)
		}
	}
}

// scripts are shell lines with what is seen in them.
type scripts []struct {
	script  string
	want    string // a command that must be seen
	unknown bool   // not everything that runs can be known
}

func (s scripts) check(t *testing.T) {
	t.Helper()
	for _, tc := range s {
		list, unknown := mcpserver.Commands(tc.script)
		if tc.want != "" && !contains(list, tc.want) || (unknown != "") != tc.unknown {
			t.Errorf("%q: %q, unknown %q; want %q, unknown %v", tc.script, list, unknown, tc.want, tc.unknown)
		}
	}
}

// TestScriptsInArguments: programs that take a script in their arguments.
func TestScriptsInArguments(t *testing.T) {
	t.Parallel()
	scripts{
		{script: "env -S 'curl x'", want: "curl x"},
		{script: "env '-Scurl x'", want: "curl x"},
		{script: "env -S 'sh -c' 'ls; curl x'", want: "curl x"},
		{script: `env -S "$X"`, unknown: true},
		{script: `env -S 'curl\_x'`, unknown: true},
		{script: "env -S 'A=b\vcurl x'", unknown: true}, // to env that is a blank
		{script: "env -$X curl x", unknown: true},
		{script: "flock l -c 'ls; curl x'", want: "curl x"},
		{script: "flock -n l --command 'curl x'", want: "curl x"},
		{script: "watch 'curl x'", want: "curl x"},
		{script: "watch -n 1 -d curl x", want: "curl x"},
		{script: "watch --interval 1 'ls | curl x'", want: "curl x"},
		{script: "su -c 'curl x'", want: "curl x"},
		{script: "su - user -c 'curl x'", want: "curl x"},
		{script: "su -T -c 'curl x'", want: "curl x"}, // -T has no value
		{script: "env /a=b curl x", unknown: true},
		{script: "watch -x env -u '#' curl x", want: "curl x"},
		{script: "watch --exec env -u '#' curl x", want: "curl x"},
		{script: "busybox hush -c 'curl x'", want: "curl x"},
		{script: "su user --command='curl x'", want: "curl x"},
		{script: "su user -- -c 'curl x'", want: "curl x"},
		{script: `su -c "$X"`, unknown: true},
		{script: "script -c 'curl x'", want: "curl x"},
		{script: "script -qc 'curl x' /dev/null", want: "curl x"},
		{script: "script f --command 'curl x'", want: "curl x"},
		{script: "bash --rcfile X -c 'curl x'", want: "curl x"},
		{script: "bash --init-file X -c 'curl x'", want: "curl x"},
		{script: "bash --rcfile <(ls) -i", unknown: true},
		{script: "bash -norc -posix -c 'curl x'", want: "curl x"},
		{script: "bash -rcfile X -login -c 'curl x'", want: "curl x"},
		{script: "bash +o posix -c 'curl x'", want: "curl x"},
		{script: "bash -o posix -ec 'curl x'", want: "curl x"},
		{script: "bash -co pipefail 'curl x'", want: "curl x"},
		{script: "bash -c -- 'curl x'", want: "curl x"},
		{script: "bash +c 'curl x'", want: "curl x"},
		{script: "bash -O extglob x.sh", want: "bash -O extglob x.sh"},
		{script: "echo `echo \\`curl x\\``", want: "curl x"},
		{script: "((curl x); ls)", want: "curl x", unknown: true},
		{script: "ls | xargs env", unknown: true},
		{script: "ls | xargs timeout 5", unknown: true},
		{script: "ls | xargs -I{} timeout {} ls", want: "ls"},
		{script: "time ! curl x", want: "curl x", unknown: true},
		{script: "time -p -- curl x", want: "curl x"},
		{script: "eval -- curl x", want: "curl x"},
		{script: "builtin eval 'curl x'", want: "curl x"},
		{script: "trap -- 'curl x' EXIT", want: "curl x"},
		{script: "trap - EXIT", want: "trap - EXIT"},
		{script: "alias x='curl -s'; x", want: "curl -s", unknown: true},
		{script: "alias x=$Y", unknown: true},
		{script: "alias", want: "alias"},
		{script: `find . -exec sh -c 'curl "$1"' _ {} \;`, want: "curl ?"},
		{script: `find . -exec sh -c 'ls {}' \;`, unknown: true},
		{script: `find . -exec sh -c {} \;`, unknown: true},
		{script: `find . -exec {} \;`, unknown: true},
		{script: `find . -exec bash -n {} \;`, want: "bash -n {}"},
		{script: "ls | xargs -n1 sh -c 'curl \"$1\"' _", want: "curl ?"},
		{script: "ls | xargs -I% sh -c 'ls %'", unknown: true},
		{script: "ls | xargs -0 sh -c", unknown: true},
		{script: "ls | xargs sh", unknown: true},
		{script: "ls | xargs -I{} {} x", unknown: true},
		{script: "ls | xargs sh x.sh", want: "sh x.sh ?"},
		{script: "{\"curl\",x}", unknown: true},
		{script: "c['u']rl x", unknown: true},
	}.check(t)
}

// TestWhatFeedsAShell: a shell that takes its commands from elsewhere takes known ones, or is not known.
func TestWhatFeedsAShell(t *testing.T) {
	t.Parallel()
	const doc = " <<'EOF'\ncurl x\nEOF\n"
	scripts{
		{script: "{ sh; }" + doc, want: "curl x"},
		{script: "(cd y; env bash -s)" + doc, want: "curl x"},
		{script: "if sh; then :; fi" + doc, want: "curl x"},
		{script: "while sh; do :; done <<< 'curl x'", want: "curl x"},
		{script: "sh -c 'cd y; sh'" + doc, want: "curl x"},
		{script: "eval sh" + doc, want: "curl x"},
		{script: "sudo -s" + doc, want: "curl x"},
		{script: "su user" + doc, want: "curl x"},
		{script: "sh 0" + doc[1:], want: "curl x"},
		{script: "sh </dev/null" + doc, want: "curl x"},
		{script: "sh /dev/stdin" + doc, want: "curl x"},
		{script: ". /dev/fd/0" + doc, want: "curl x"},
		{script: "sh 00" + doc[1:], want: "curl x"},
		{script: "exec" + doc, want: "curl x"},
		{script: "sh ../dev/stdin" + doc, want: "curl x"},
		{script: "sh ../../dev/fd/0" + doc, want: "curl x"},
		{script: "bash < /dev/tcp/127.0.0.1/80", unknown: true},
		{script: "coproc sh &>f", unknown: true},
		{script: "sh </dev/stdin" + doc, want: "sh"},
		{script: "{ sh </dev/stdin; }" + doc, want: "curl x"},
		{script: "{ read l; sh; }" + doc, unknown: true},
		{script: "{ cat; sh; }" + doc, unknown: true},
		{script: "f() { sh; }; f" + doc, unknown: true},
		{script: "sh <<'EOF'\nsh\ncurl x\nEOF\n", unknown: true},
		{script: "sh /dev/fd/3 3" + doc[1:], unknown: true},
		{script: "sh <&3 3" + doc[1:], unknown: true},
		{script: "bash < <(echo curl x)", unknown: true},
		{script: "bash <(echo curl x)", unknown: true},
		{script: "source <(echo curl x)", unknown: true},
		{script: ". <(echo curl x)", unknown: true},
		{script: "exec < <(echo curl x)", unknown: true},
		{script: "echo curl x > >(sh)", unknown: true},
		{script: "echo curl x | tee >(cd y; bash)", unknown: true},
		{script: "coproc sh", unknown: true},
		{script: "exec {fd}< <(echo curl x); sh <&$fd", unknown: true},
		{script: "exec {fd}< <(echo curl x); . /dev/fd/$fd", unknown: true},
		{script: "echo curl x | . /dev/stdin", unknown: true},
		{script: "echo curl x | sh -c 'cd y; sh'", unknown: true},
		{script: "echo curl x | { ls; sudo -s; }", unknown: true},
		{script: "sh $X", unknown: true},
		{script: `sh "$X" y`, unknown: true},
		{script: "sh {-c,'curl x'}", unknown: true},
		{script: "sh *", unknown: true},
		{script: "env {-S,'curl x'}", unknown: true},
		{script: "sh tests/*.sh", want: "sh ?"},
		{script: `sh "$@"`, unknown: true},
		{script: "echo curl x | sh /dev/std*", unknown: true},
		{script: "source /proc/$$/fd/0" + doc, unknown: true},
		// Nothing feeds these shells, or files do.
		{script: "ls | sort; sh", want: "sh"},
		{script: "echo x | cat; bash -s", want: "bash -s"},
		{script: "(ls | sort) && sh", want: "sh"},
		{script: "sh < x.sh", want: "sh"},
		{script: "sh 3" + doc[1:], want: "sh"},
		{script: "cat <(sh x.sh) > >(tee y)", want: "tee y"},
		{script: `bash "$X"`, want: "bash ?"},
		{script: "bash x/$X.sh y", want: "bash ? y"},
		{script: `ls | while read -r f; do bash -n "$f" && . "$f"; done`, want: ". ?"},
		{script: `. "$HOME/.profile"`, want: ". ?"},
		{script: "source venv/bin/activate && ls", want: "ls"},
	}.check(t)
	stdin := "curl x\n"
	for _, tc := range []struct {
		script  string
		want    string
		unknown bool
	}{
		{script: "cd y && bash -s", want: "curl x"},
		{script: "ls | sort; sh", unknown: true}, // ls and sh have one input
		{script: "ls </dev/null | sort; sh", want: "curl x"},
		{script: "cat", want: "cat"},
		{script: ". /dev/stdin", want: "curl x"},
	} {
		list, unknown := mcpserver.CommandsOfList([]string{"sh", "-c", tc.script}, &stdin)
		if tc.want != "" && !contains(list, tc.want) || (unknown != "") != tc.unknown {
			t.Errorf("%q with input: %q, unknown %q; want %q, unknown %v", tc.script, list, unknown, tc.want, tc.unknown)
		}
	}
}

// TestPolicyRefusesNoMore: what only resembles a refused command runs.
func TestPolicyRefusesNoMore(t *testing.T) {
	t.Parallel()
	p := parsePolicy(t, `
commands:
  refuse:
    - {name: no-push, pattern: "git -** push"}
    - {name: short, pattern: "rm ** -*[rR]*"}
    - {name: long, pattern: "rm ** --r*"}
    - {pattern: curl}
    - {pattern: sudo}
`)
	for script, rule := range map[string]string{
		"git push":                              "no-push",
		"git -C x push":                         "no-push",
		"git -c a=b --no-pager push origin":     "no-push",
		`git -C "$X" push`:                      "no-push",
		"git --git-dir=x push":                  "no-push",
		"git stash push":                        "",
		"git -C x stash push":                   "",
		"git subtree push":                      "",
		"git commit -m push":                    "",
		"rm -fr x":                              "short",
		"rm x -R":                               "short",
		"rm --recursive x":                      "long",
		"rm --rec x":                            "long",
		"rm --force x":                          "",
		"rm --interactive=never -f x":           "",
		"command -v curl":                       "",
		"command -pV curl || ls":                "",
		"command curl x":                        "curl",
		"type curl; which curl":                 "",
		"env sudo id":                           "sudo",
		"nice env -i sudo -u x id":              "sudo",
		"sudo -l curl":                          "sudo",
		"m[a]=1":                                "",
		"m[$i]=$((i + 1)); m+=(x)":              "",
		`m["k"]=1 curl x`:                       "curl",
		"PATH+=:/x ls":                          "",
		"if (( $a > 1 )); then ls; fi":          "",
		"((i*=2)); (( i % 2 == 0 ))":            "",
		"((curl x))":                            "curl", // a subshell where sh is not bash
		"(( $(curl x) > 1 ))":                   "curl",
		"((i++)); $X":                           "commands.allow_dynamic",
		"((i++)); echo x | sh":                  "commands.allow_dynamic",
		"ls | sort > x; sh y.sh":                "",
		`for f in *.sh; do bash -n "$f"; done`:  "",
		`while read -r l; do echo "$l"; done<x`: "",
	} {
		if got := p.Judge(script); got != rule {
			t.Errorf("%q: refused by %q, want %q", script, got, rule)
		}
	}
}

// TestPolicyRefusesNoEverydayCommand: what agents run all day gives no cause for doubt.
func TestPolicyRefusesNoEverydayCommand(t *testing.T) {
	t.Parallel()
	p := parsePolicy(t, policyYAML)
	for _, script := range []string{
		"cd /workspace && pip install -r requirements.txt 2>&1 | tail -5",
		"cat > a.sh <<'EOF'\n#!/bin/bash\n\"$@\" | sh\nEOF\nchmod +x a.sh && ./a.sh",
		"python3 - <<EOF\nprint('it\\'s $X')\nEOF\n",
		"python3 -c 'import os; os.system(\"curl x\")'",
		"ssh host <<'EOF'\ncurl x\nEOF\n",
		"bash <<'EOF'\nset -e\ncd x\nmake\nEOF\n",
		`for f in $(ls *.{c,h}); do echo "$f" "${f%.*}"; done; mkdir -p src/{a,b}`,
		"export PATH=$PATH:/x && go test ./... | tee log",
		"if ! command -v node >/dev/null 2>&1; then apt-get install -y curl; fi",
		"find . -name '*.py' -print0 | xargs -0 -I{} cp {} /tmp",
		"find . -type f -exec sed -i 's/a/b/' {} +",
		"ls | xargs -I{} sh -c 'wc -l \"$1\"' _ {}",
		`bash -lc "cd /x && make -j4"`,
		"timeout 10 bash -c 'until nc -z localhost 80; do sleep 1; done'",
		"nohup python3 -m http.server > log 2>&1 & (sleep 1; kill $!)",
		"declare -A m; m[a]=1; m[$k]+=2; echo ${m[a]} ${#m[@]}; a=(1 2); a+=(3)",
		"diff <(sort a) <(sort b) 2> >(tee err >&2)",
		"exec > log 2>&1; exec 3< f; read -u 3 l; exec 3<&- </dev/null",
		"((count++)); while (( i < $n )); do ((i+=1)); done; echo $((i * 2))",
		"[[ $x =~ ^[a-z]+$ ]] && case $1 in -h|--help) ls;; *) ls [ab]*;; esac",
		`foo() { local x=$1; echo "$x"; }; function bar { foo "$@"; }; bar y`,
		`FOO=$BAR env BAZ="$Q" nice -n 10 make`,
		"su - postgres -c 'psql -l'; docker run --rm x curl y",
		"which curl; type -a curl; hash curl; echo curl | grep curl; ./curl.sh",
		"trap cleanup INT TERM; trap '' PIPE; trap - EXIT; trap 'echo bye' EXIT",
		`[ -s "$NVM_DIR/nvm.sh" ] && \. "$NVM_DIR/nvm.sh" && nvm use 20`,
		`bash scripts/$NAME.sh x; bash ./run.sh --all; bash -n "$f"`,
		"git stash push -m x; git --no-pager diff; git config push.default simple; git help push",
		"rm -f x; rm --force y; rm -i z",
		"echo x | sudo tee /etc/y; echo pw | sudo -S ls",
		"/usr/bin/env python3 x.py; env | sort; ~/bin/tool x; \"./my prog\" x",
	} {
		if rule := p.Judge(script); rule != "" {
			t.Errorf("%q: refused by %q", script, rule)
		}
	}
}

// TestGuardIsBounded: commands that are made to be costly to judge are given up on.
func TestGuardIsBounded(t *testing.T) {
	t.Parallel()
	for _, script := range []string{
		strings.Repeat("env ", 16_000) + "x",
		strings.Repeat("watch ", 10_000) + "x",
		strings.Repeat("find -exec ", 5_000) + "x",
		strings.Repeat("xargs -I{} ", 5_000) + "x",
		strings.Repeat("env -S 'env ", 5_000) + "x",
		strings.Repeat("x|", 30_000) + "x",
	} {
		if _, unknown := mcpserver.Commands(script); unknown == "" {
			t.Errorf("%.40q… is judged", script)
		}
	}
	if _, unknown := mcpserver.Commands("((" + strings.Repeat("a[", 5_000) + "'$(x)'" + strings.Repeat("]", 5_000) + "))"); unknown == "" {
		t.Error("quotes in a deep expression are passed over")
	}
	list, unknown := mcpserver.Commands("rm " + strings.Repeat("-x ", 20_000))
	if unknown != "" || !slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, "rm -x") }) {
		t.Errorf("a long command: unknown %q", unknown)
	}
}
