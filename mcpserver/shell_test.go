package mcpserver_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
)

// TestCommands verifies that the simple commands of a shell line with literal words are found, and computed commands
// are reported as unknown.
func TestCommands(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		script  string
		want    []string // commands that must be included
		unknown bool
	}{
		{script: "rm -rf /", want: []string{"rm -rf /"}},
		{script: "ls | sort | rm x", want: []string{"ls", "sort", "rm x"}},
		{script: "a; b && c || d & e", want: []string{"a", "b", "c", "d", "e"}},
		{script: "(cd x; rm y) && { rm z; }", want: []string{"cd x", "rm y", "rm z"}},
		{script: "echo $(rm x) `rm y` \"$(rm z)\"", want: []string{"rm x", "rm y", "rm z"}},
		{script: "cat <<EOF\n$(rm x)\nEOF\n", want: []string{"rm x"}},
		{script: "if rm a; then rm b; else rm c; fi", want: []string{"rm a", "rm b", "rm c"}},
		{script: "for i in 1 2; do rm a; done; while rm b; do :; done", want: []string{"rm a", "rm b"}},
		{script: "case x in x) rm a;; esac; f() { rm b; }; f", want: []string{"rm a", "rm b", "f"}},
		{script: "cat <(rm a) >(rm b); x=$(rm c)", want: []string{"rm a", "rm b", "rm c"}},
		{script: "time rm a; ! rm b; coproc rm c", want: []string{"rm a", "rm b", "rm c"}},
		// Quotes.
		{script: `r\m a; 'r'"m" b; r''m c`, want: []string{"rm a", "rm b", "rm c"}},
		{script: "\\\nrm a; r\\\nm b", want: []string{"rm a", "rm b"}},
		{script: `"a b" c; /bin/rm a`, want: []string{"a b c", "/bin/rm a"}},
		// Wrappers.
		{script: "env A=b -u X -i rm a; env A=$B rm b; FOO=$X rm c", want: []string{"rm a", "rm b", "rm c"}},
		{script: "sudo -nu root rm a; timeout -k 1 5 nice -n 3 nohup rm b", want: []string{"rm a", "rm b", "nice -n 3 nohup rm b"}},
		{script: "ls | xargs -0n 1 rm -f; stdbuf -oL rm a", want: []string{"rm -f ?", "rm a"}},
		{script: "exec rm a; command -p rm b; busybox rm c", want: []string{"rm a", "rm b", "rm c"}},
		{script: `find . -exec rm {} \;`, want: []string{"rm ?"}},
		// Scripts in arguments and here-documents.
		{script: `sh -c "rm a"; bash -xec 'rm b' name; sudo bash -lc 'rm c'`, want: []string{"rm a", "rm b", "rm c"}},
		{script: `bash --norc -o pipefail -c 'sh -c "rm a"'`, want: []string{"rm a"}},
		{script: "eval 'rm a'; eval rm b; trap 'rm c' EXIT", want: []string{"rm a", "rm b", "rm c"}},
		{script: "eval -- 'rm a'; trap -- 'rm b' EXIT; . -- /dev/stdin <<< x", want: []string{"rm a", "rm b", "x"}},
		{script: "sh <<'EOF'\nrm a\nEOF\nenv bash -s <<< 'rm b'", want: []string{"rm a", "rm b"}},
		{script: "sh script.sh; echo x | sh x/$X.sh; python3 -c 'print(1)'", want: []string{"sh script.sh", "python3 -c print(1)"}},
		// Computed arguments cannot be programs.
		{script: "echo $X; ls *.txt", want: []string{"echo ?", "ls ?"}},
		// Computed commands are unknown.
		{script: "$X a", unknown: true},
		{script: "$(echo rm) a", unknown: true},
		{script: "r$X a", unknown: true},
		{script: "/bin/r? a", unknown: true},
		{script: "{rm,-rf,a}", unknown: true},
		{script: "sudo $X", unknown: true},
		{script: `sh -c "$X"`, unknown: true},
		{script: "eval $X", unknown: true},
		{script: "echo rm a | sh", unknown: true},
		{script: "echo rm a | env bash -s", unknown: true},
		{script: "bash <<EOF\nrm $X\nEOF\n", unknown: true},
		{script: "bash <(echo rm a)", unknown: true},
		{script: "F=-c; bash $F 'rm a'", unknown: true},
		{script: "echo rm a | bash /dev/stdin", unknown: true},
		{script: "source <(echo rm a)", unknown: true},
		{script: "echo rm a | xargs env", unknown: true},
		{script: "echo 'rm a' | xargs -I{} sh -c {}", unknown: true},
		{script: "find . -exec sh -c {} ';'", unknown: true},
		{script: "if then", unknown: true},
		{script: strings.Repeat("a;", 100_000), unknown: true},
		{script: strings.Repeat("(", 20_000), unknown: true},
		{script: strings.Repeat("env ", 16_000) + "x", unknown: true},
		{script: strings.Repeat("find -exec ", 5_000), unknown: true},
	} {
		got, unknown := mcpserver.Commands(tc.script)
		if (unknown != "") != tc.unknown {
			t.Errorf("%.60q: unknown = %q, want %v", tc.script, unknown, tc.unknown)
		}
		for _, want := range tc.want {
			if !slices.Contains(got, want) {
				t.Errorf("%.60q: %q is not seen, got %q", tc.script, want, got)
			}
		}
	}
}

// TestCommandsOfList verifies that an argument list is not parsed as a shell line, but may run a shell.
func TestCommandsOfList(t *testing.T) {
	t.Parallel()
	script := "rm a\n"
	for _, tc := range []struct {
		argv    []string
		stdin   *string
		want    string
		unknown bool
	}{
		{argv: []string{"rm", "-rf", "*"}, want: "rm -rf *"}, // without a shell, a star is literal
		{argv: []string{"sh", "-c", "ls; rm a"}, want: "rm a"},
		{argv: []string{"env", "X=1", "rm", "a"}, want: "rm a"},
		{argv: []string{"bash", "-s", "--"}, stdin: &script, want: "rm a"},
		{argv: []string{"sh"}, unknown: true},
		{argv: []string{"sh", "-c", "$1", "x", "rm"}, unknown: true},
	} {
		got, unknown := mcpserver.CommandsOfList(tc.argv, tc.stdin)
		if (unknown != "") != tc.unknown || tc.want != "" && !slices.Contains(got, tc.want) {
			t.Errorf("%q: %q, unknown %q; want %q", tc.argv, got, unknown, tc.want)
		}
	}
}

// TestPolicyRefusesNoEverydayCommand verifies that common commands of agents are not refused as unknown.
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
		"trap cleanup INT TERM; trap '' PIPE; trap - EXIT $SIGNAL; trap 'echo bye' EXIT",
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

const policyYAML = `
commands:
  refuse:
    - {name: no-push, pattern: "git -** push", reason: "pushing is for people"}
    - {pattern: "rm ** -*r*"}
    - {pattern: "curl"}
    - {pattern: "/usr/bin/special"}
files:
  refuse: ["*.exe", ".env"]
limits:
  file_mb: 1
  exec_timeout: 60s
`

func TestPolicyOnCommands(t *testing.T) {
	t.Parallel()
	p := parsePolicy(t, policyYAML)
	for _, tc := range []struct {
		script string
		rule   string // empty if allowed
	}{
		{"git push", "no-push"},
		{"git -C x push origin", "no-push"},
		{"git status", ""},
		{"rm a", ""},
		{"rm -rf a", "rm ** -*r*"},
		{"rm a -fr", "rm ** -*r*"},
		{"ls && rm a b -r c", "rm ** -*r*"},
		{"curl", "curl"},
		{"/usr/local/bin/curl http://x", "curl"},
		{"echo curl", ""},
		{"curly", ""},
		{"special", ""},
		{"/usr/bin/special", "/usr/bin/special"},
		{"(sleep 1; timeout 3 curl x)", "curl"},
		{`git -C "$X" push`, "no-push"},
		{"git -c a=b --no-pager push origin", "no-push"},
		{"git stash push", ""},
		{"git -C x stash push", ""},
		{"git commit -m push", ""},
		{"rm --recursive x", ""}, // a pattern with one dash matches only short options
		{"command -v curl; type curl; which curl", ""},
		{"nice env -i sudo -u x curl x", "curl"},
		{"sudo -l curl", ""},
		{"$X", "commands.allow_dynamic"},
		{"ls $X", ""},
	} {
		if rule := p.Judge(tc.script); rule != tc.rule {
			t.Errorf("%q: refused by %q, want %q", tc.script, rule, tc.rule)
		}
	}
	lenient := parsePolicy(t, policyYAML)
	lenient.Commands.AllowDynamic = true
	if rule := lenient.Judge("$X"); rule != "" {
		t.Errorf("allow_dynamic: refused by %q", rule)
	}
}

func TestPolicyThatAllowsLittle(t *testing.T) {
	t.Parallel()
	p := parsePolicy(t, `
commands:
  allow:
    - {pattern: "go test"}
    - {pattern: "ls"}
  allow_dynamic: true
`)
	for _, tc := range []struct {
		script string
		ok     bool
	}{
		{"go test ./...", true},
		{"go build ./...", false},
		{"cd x && go test ./... | ls", true},
		{"cd x && go test ./... | tee y", false},
		{"ls $(cat x)", false},
		{"ls $X", true},
		{"go $X", false},
		{"$X", false}, // no list can contain dynamic programs
		{"env ls", false},
		{"echo hi", true},
	} {
		if rule := p.Judge(tc.script); (rule == "") != tc.ok {
			t.Errorf("%q: refused by %q, want allowed = %v", tc.script, rule, tc.ok)
		}
	}
}

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	p := parsePolicy(t, "limits: {file_mb: 3}\n")
	want := mcpserver.PolicyLimits{FileMB: 3, WorkspaceMB: 500, ExecTimeout: 5 * time.Minute}
	if diff := cmp.Diff(want, p.Limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	for _, empty := range []string{"", "# nothing", "limits: {}\n"} {
		if diff := cmp.Diff(mcpserver.DefaultPolicy().Limits, parsePolicy(t, empty).Limits); diff != "" {
			t.Errorf("%q (-want +got):\n%s", empty, diff)
		}
	}
	for _, tc := range []struct{ yaml, want string }{
		{"limit: {}", `p.yaml:1:1: unknown key "limit" in the policy; did you mean "limits"?`},
		{"commands:\n  refuse:\n    - {patern: x}", `p.yaml:3:8: unknown key "patern" in commands.refuse[0]; did you mean "pattern"?`},
		{"limits:\n  file_mb: -1", "p.yaml:2:12: limits.file_mb must be 0 or 1 to"},
		// Rounding to 0 would mean no limit.
		{"limits:\n  memory_mb: 0.5", "limits.memory_mb must be a whole number, not the number 0.5"},
		{"limits:\n  memory_mb:", "limits.memory_mb is empty; set a value or remove the key"},
		{"limits:\n  file_mb: 10MB", "limits.file_mb must be a whole number, not text"},
		{"limits:\n  execution_seconds: 300", `p.yaml:2:3: unknown key "execution_seconds" in limits`},
		{"limits:\n  exec_timeout: 300", "limits.exec_timeout must be a duration, not the number 300; add a unit, for example 300s"},
		{"limits:\n  exec_timeout: 1500ms", "limits.exec_timeout is 1.5s; use whole seconds"},
		{"limits:\n  exec_timeout: soon", `p.yaml:2:17: limits.exec_timeout must be a duration, not text; write it as "90s"`},
		{"limits:\n  workspace: 1", `unknown key "workspace" in limits; did you mean "workspace_mb"?`},
		{"files: {refuse: x}", "p.yaml:1:17: files.refuse must be a list, not text"},
		{"- a", "p.yaml:1:1: the policy must be a mapping, not a list"},
		{"commands: [", "p.yaml:1:11: malformed YAML"},
		{"commands: {refuse: [{name: x}]}", "p.yaml:1:21: commands.refuse[0]: no pattern"},
		{"commands: {refuse: [{pattern: '** x'}]}", "specify the program"},
		{"commands: {refuse: [{pattern: '-** x'}]}", "specify the program"},
		{"commands:\n  allow:\n    - pattern: ls\n    - pattern: '['", "commands.allow[1]: pattern"},
		{"files:\n  refuse:\n    - a/b", "p.yaml:3:7: files.refuse[0]: \"a/b\" is not a base name pattern; for example *.exe"},
		{"files: {}\n---\nfiles: {}", "more than one"},
		{"files: {}\nfiles: {}", "p.yaml:2:1: duplicate key \"files\"; the first is on line 1"},
	} {
		if _, err := mcpserver.ParsePolicy("p.yaml", []byte(tc.yaml)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.yaml, err, tc.want)
		}
	}
}

func TestPolicyOnFiles(t *testing.T) {
	t.Parallel()
	p := parsePolicy(t, policyYAML)
	for name, rule := range map[string]string{
		"a.txt": "", "x/SETUP.EXE": "files.refuse *.exe", "d/.env": "files.refuse .env", "exe": "",
	} {
		if got := p.FileRule(name); got != rule {
			t.Errorf("%q: %q, want %q", name, got, rule)
		}
	}
	p = parsePolicy(t, "files: {allow: ['*.md']}")
	if p.FileRule("a.md") != "" || p.FileRule("a.py") != "files.allow" {
		t.Error("files.allow does not hold")
	}
}

func parsePolicy(t testing.TB, text string) mcpserver.Policy {
	t.Helper()
	p, err := mcpserver.ParsePolicy("p.yaml", []byte(text))
	checktest.Must(t, err)
	return p
}

// FuzzCommands verifies that the parser never panics and never misses a literal command.
func FuzzCommands(f *testing.F) {
	for _, seed := range []string{"ls", "a | b && (c; d)", "echo $(x `y`)", "sh -c 'a; b'", "f() { g; }", "cat <<EOF\nx\nEOF", "{a,b}", "((((", "$'\\x41'", "find . -exec x \\;",
		"xargs -0n1 -I% sh -c %", "bash -eo pipefail -c x", "{ sh; } <<< x", "m[a]=1", "((a*2))", "a=(1)\n(("} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, script string) {
		mcpserver.CommandsOfList(strings.Fields(script), &script)
		list, unknown := mcpserver.Commands("forbidden x\n" + script)
		if unknown == "" && !slices.Contains(list, "forbidden x") {
			t.Errorf("%q: the first command is not seen: %q", script, list)
		}
	})
}
