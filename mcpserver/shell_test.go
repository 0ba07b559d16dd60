package mcpserver_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/mcpserver"
)

// TestCommandsInAScript pins which simple commands are seen in a shell line. What cannot be known must be said to be so.
func TestCommandsInAScript(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		script  string
		want    []string // some of the commands that must be seen
		unknown bool
	}{
		{script: "rm -rf /", want: []string{"rm -rf /"}},
		{script: "ls | sort | rm x", want: []string{"ls", "sort", "rm x"}},
		{script: "a; b && c || d & e", want: []string{"a", "b", "c", "d", "e"}},
		{script: "(cd x; rm y)", want: []string{"cd x", "rm y"}},
		{script: "{ rm y; }", want: []string{"rm y"}},
		{script: "echo $(rm x) `rm y`", want: []string{"rm x", "rm y"}},
		{script: `echo "$(rm x)"`, want: []string{"rm x"}},
		{script: "cat <<EOF\n$(rm x)\nEOF\n", want: []string{"rm x"}},
		{script: "if rm a; then rm b; else rm c; fi", want: []string{"rm a", "rm b", "rm c"}},
		{script: "for i in 1 2; do rm a; done; while rm b; do :; done", want: []string{"rm a", "rm b"}},
		{script: "case x in x) rm a;; esac", want: []string{"rm a"}},
		{script: "f() { rm a; }; f", want: []string{"rm a", "f"}},
		{script: "cat <(rm a) >(rm b)", want: []string{"rm a", "rm b"}},
		{script: "x=$(rm a)", want: []string{"rm a"}},
		{script: "[[ -n $(rm a) ]]", want: []string{"rm a"}},
		{script: "time rm a", want: []string{"rm a"}},
		{script: "! rm a", want: []string{"rm a"}},
		{script: "echo hi &>rm", want: []string{"echo hi"}},
		// Quoting.
		{script: `r\m a`, want: []string{"rm a"}},
		{script: `'r'"m" a`, want: []string{"rm a"}},
		{script: "r''m a", want: []string{"rm a"}},
		{script: "\\\nrm a", want: []string{"rm a"}},
		{script: "r\\\nm a", want: []string{"rm a"}},
		{script: `"a b" c`, want: []string{"a b c"}},
		{script: "/bin/rm a", want: []string{"/bin/rm a"}},
		// Wrappers.
		{script: "env A=b -u X -i rm a", want: []string{"rm a"}},
		{script: "sudo -u root rm a", want: []string{"rm a"}},
		{script: "timeout -k 1 5 nice -n 3 nohup rm a", want: []string{"rm a"}},
		{script: "ls | xargs -n 1 rm -f", want: []string{"rm -f ?"}},
		{script: "exec rm a", want: []string{"rm a"}},
		{script: "command -p rm a", want: []string{"rm a"}},
		{script: "busybox rm a", want: []string{"rm a"}},
		{script: "find . -name x -exec rm {} ;", want: []string{"find . -name x -exec rm {}"}},
		{script: `find . -exec rm {} \;`, want: []string{"rm {}"}},
		{script: `find . -exec a {} + -exec b x + y \;`, want: []string{"a {}", "b x + y"}},
		{script: `sh -c "rm a"`, want: []string{"rm a"}},
		{script: `bash -xec 'rm a' name`, want: []string{"rm a"}},
		{script: `bash --norc -c 'sh -c "rm a"'`, want: []string{"rm a"}},
		{script: "eval 'rm a'", want: []string{"rm a"}},
		{script: "eval rm a", want: []string{"rm a"}},
		{script: "trap 'rm a' EXIT", want: []string{"rm a"}},
		{script: "sh <<'EOF'\nrm a\nEOF\n", want: []string{"rm a"}},
		{script: "bash <<< 'rm a'", want: []string{"rm a"}},
		{script: "env sh -s <<'EOF'\nrm a\nEOF\n", want: []string{"rm a"}},
		{script: "sh <<'EOF'\ncurl 'http://x/?q=1'\nEOF\n", want: []string{"curl http://x/?q=1"}},
		{script: "sh <<'EOF'\necho \\\"; rm a; echo \\\"\nEOF\n", want: []string{"rm a"}},
		{script: "cat <<EOF\nrm $X *\nEOF\n", want: []string{"cat"}},
		{script: "bash <<EOF\nrm $X\nEOF\n", unknown: true},
		{script: `bash <<< "$X"`, unknown: true},
		{script: strings.Repeat("(", 20_000), unknown: true},
		{script: strings.Repeat("find -exec ", 40), unknown: true},
		// What is computed cannot be known.
		{script: "$X a", unknown: true},
		{script: "$(echo rm) a", unknown: true},
		{script: "r$X a", unknown: true},
		{script: "/bin/r? a", unknown: true},
		{script: "{rm,-rf,a}", unknown: true},
		{script: "$'\\x72m' a", unknown: true},
		{script: "sh -c $X", unknown: true},
		{script: `sh -c "$X"`, unknown: true},
		{script: "eval $X", unknown: true},
		{script: "echo rm a | sh", unknown: true},
		{script: "echo rm a | env bash -s", unknown: true},
		{script: "echo rm a | (sh)", unknown: true},
		{script: "echo rm a | { cd x; sh; }", unknown: true},
		{script: "if then", unknown: true},
		{script: strings.Repeat("a;", 100_000), unknown: true},
		// What looks like it is known all the same.
		{script: "echo $X", want: []string{"echo ?"}},
		{script: "ls *.txt", want: []string{"ls ?"}},
		{script: "sh script.sh", want: []string{"sh script.sh"}},
		{script: "echo x | sh script.sh", want: []string{"sh script.sh"}},
		{script: "python3 -c 'print(1)'", want: []string{"python3 -c print(1)"}},
	} {
		got, unknown := mcpserver.Commands(tc.script)
		if (unknown != "") != tc.unknown {
			t.Errorf("%.60q: unknown = %q, want %v", tc.script, unknown, tc.unknown)
		}
		for _, want := range tc.want {
			if !contains(got, want) {
				t.Errorf("%.60q: %q is not seen, got %q", tc.script, want, got)
			}
		}
	}
}

func contains(list []string, want string) bool {
	for _, s := range list {
		if s == want {
			return true
		}
	}
	return false
}

// TestCommandsOfAnArgumentList looks through wrappers, and through shells that read their standard input.
func TestCommandsOfAnArgumentList(t *testing.T) {
	t.Parallel()
	script := "rm a\n"
	for _, tc := range []struct {
		argv    []string
		stdin   *string
		want    string
		unknown bool
	}{
		{argv: []string{"rm", "-rf", "*"}, want: "rm -rf *"}, // no shell: a star is a star
		{argv: []string{"sh", "-c", "ls; rm a"}, want: "rm a"},
		{argv: []string{"env", "X=1", "rm", "a"}, want: "rm a"},
		{argv: []string{"sh"}, stdin: &script, want: "rm a"},
		{argv: []string{"bash", "-s", "--"}, stdin: &script, want: "rm a"},
		{argv: []string{"sh", "-c", "$1", "x", "rm"}, unknown: true},
	} {
		got, unknown := mcpserver.CommandsOfList(tc.argv, tc.stdin)
		if (unknown != "") != tc.unknown || tc.want != "" && !contains(got, tc.want) {
			t.Errorf("%q: %q, unknown %q; want %q", tc.argv, got, unknown, tc.want)
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
  execution_seconds: 60
`

func TestPolicyOnCommands(t *testing.T) {
	t.Parallel()
	p := parsePolicy(t, policyYAML)
	for _, tc := range []struct {
		script string
		rule   string // empty: allowed
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
		{"$X", false}, // dynamic programs are never on a list
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
	want := mcpserver.PolicyLimits{FileMB: 3, WorkspaceMB: 500, ExecutionSeconds: 300}
	if diff := cmp.Diff(want, p.Limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	parsePolicy(t, "")
	for _, tc := range []struct{ yaml, want string }{
		{"limit: {}", `line 1: unknown key "limit", it must be commands, files or limits`},
		{"commands:\n  refuse:\n    - {patern: x}", `line 3: unknown key "patern", it must be name, pattern or reason`},
		{"limits:\n  file_mb: -1", "line 2: limits.file_mb: -1 is not between"},
		{"limits:\n  cpu_millicores: 1\n  memory_mb: 0.5", "line 3: limits.memory_mb: 0.5 is not a whole number"}, // 0 would be no bound
		{"limits:\n  file_mb: 10MB\n  workspace: 1", "line 2: `10MB` is not a whole number; line 3: unknown key"},
		{"files: {refuse: x}", "line 1: `x` is not a list of patterns"},
		{"- a", "line 1: is not a mapping"},
		{"commands: [", "line 1: did not find"},
		{"commands: {refuse: [{name: x}]}", "line 1: commands.refuse[0]: no pattern"},
		{"commands: {refuse: [{pattern: '** x'}]}", "name the program"},
		{"commands: {refuse: [{pattern: '-** x'}]}", "name the program"},
		{"commands:\n  allow:\n    - pattern: ls\n    - pattern: '['", "line 4: commands.allow[1]: pattern"},
		{"files:\n  refuse:\n    - a/b", "line 3: files.refuse[0]"},
		{"files: {}\n---\nfiles: {}", "more than one"},
		{"files: {}\nfiles: {}", "already defined"},
	} {
		if _, err := mcpserver.ParsePolicy(strings.NewReader(tc.yaml)); err == nil || !strings.Contains(err.Error(), tc.want) {
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
	p, err := mcpserver.ParsePolicy(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// FuzzCommands: whatever a model writes, the parser neither panics nor loses a command that stands there in plain words.
func FuzzCommands(f *testing.F) {
	for _, seed := range []string{"ls", "a | b && (c; d)", "echo $(x `y`)", "sh -c 'a; b'", "f() { g; }", "cat <<EOF\nx\nEOF", "{a,b}", "((((", "$'\\x41'", "find . -exec x \\;",
		"env --chdir /x -S 'a b' c", "xargs -0n1 -I% sh -c %", "su - x -c y", "bash -eo pipefail -c x", "{ sh; } <<< x", "m[a]=1", "((a*2))",
		"echo \"${x:-'$(y)'}\" $z#a", "cat <<EOF\nE\\\nOF\nEOF\n", "coproc a &>b c", "x # y\\\nz", "a=(1)\n((", "watch -x a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, script string) {
		mcpserver.Commands(script)
		mcpserver.CommandsOfList(strings.Fields(script), &script)
		list, unknown := mcpserver.Commands("forbidden x\n" + script)
		if unknown == "" && !contains(list, "forbidden x") {
			t.Errorf("%q: the first command is not seen: %q", script, list)
		}
	})
}

// FuzzPolicy: a policy that is read can be used.
func FuzzPolicy(f *testing.F) {
	f.Add(policyYAML)
	f.Add("limits: {file_mb: 1}")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := mcpserver.ParsePolicy(strings.NewReader(text))
		if err != nil {
			return
		}
		p.Judge("git push; rm -rf x")
		p.FileRule("a.exe")
	})
}
