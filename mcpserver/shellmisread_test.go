package mcpserver_test

import (
	"strings"
	"testing"
)

// TestMisread: what shells read otherwise than the parser does. In each of these dash or bash runs curl.
func TestMisread(t *testing.T) {
	t.Parallel()
	p := parsePolicy(t, "commands: {refuse: [{pattern: curl}]}")
	for what, list := range map[string][]string{
		"a shell runs line by line, and finds a mistake later": {
			"echo &>f curl x\na=(1)", "coproc curl x\n[[ x\n", "echo &>f curl x", "echo a &>>f curl x | cat",
		},
		"a carriage return is a character": {
			"echo a\r# ; curl x", "cat <<'EOF'\r\nEOF\n: <<'X'\nEOF\r\ncurl x\nX\n", "echo 'a\r\n'\r#; curl x",
		},
		"a # within a word begins no comment": {
			"x=$(echo $x#;curl x\n)", "case x in x) echo $(:)#;curl x\n;; esac", "echo `echo ''#;curl x`", "$(echo a\\\n$x#;curl x\n)",
		},
		"a comment ends at the end of its line": {
			"echo a # b\\\ncurl x", "echo a \\\n# b\\\ncurl x",
		},
		"single quotes between double quotes are characters": {
			`echo "${x:-'$(curl x)'}"`, `echo "${x:-${y+'$(curl x)'}}"`, "cat <<EOF\n${x:-'`curl x`'}\nEOF\n", `echo "${x:+'}"; curl x; "'}"`,
			"echo $(( '$(curl x)' ))", "echo ${x:'$(curl x)'}", "((x='$(curl x)'))",
		},
		"a here-document ends elsewhere": {
			"cat <<EOF\nE\\\nOF\ncurl x\nEOF\n", "cat <<EOF\n\\\nEOF\ncurl x\nEOF\n", "echo $(cat <<EOF\nx\nEOF)\ncurl x\nEOF\n)",
			"cat <<$'EOF'\nEOF\ncurl x\nEOF\n$EOF\n", "echo $'\\'; cat <<EOF\nEOF\ncurl x\n: '",
		},
		"a coprocess has a command, not a name": {"coproc curl &>f"},
	} {
		for _, script := range list {
			if rule := p.Judge(script); rule == "" {
				t.Errorf("%s: %q is not refused", what, script)
			}
		}
	}
	for _, script := range []string{
		"make all # build\nls", "#!/bin/sh\n# a \\\n# b\nls # c\n", "ls #a\n", "(ls) # a\n", "ls;# a\n", "echo a#b ${#x} $# ${x#a} $((16#ff)) 'x'#y \"$x\"#z",
		"cat > Dockerfile <<EOF\nRUN a && \\\n    b \\\n    c\nEOF\nls", "cat <<END\nENDPOINT=x\nEND\n", "cat <<'EOF'\n$(cat)\nEOF\n",
		`echo "${x:-'none'}" "${m['key']}" "${x//\'/}" $'a\tb\n'`, "printf 'a\\r\\n'", "ls &>/dev/null; ls &>> log",
		"if ls &>/dev/null; then :; fi", "coproc cat; coproc C { cat; }", "cat <<-EOF\n\tx)\n\tEOF\n",
	} {
		if rule := p.Judge(script); rule != "" {
			t.Errorf("%q is refused by %q", script, rule)
		}
	}
	if rule := p.Judge("cu\x00rl x"); rule != "curl" { // shells leave such bytes out
		t.Errorf("with a zero byte: %q", rule)
	}
	if rule := p.Judge(strings.Repeat("coproc a &>b\n", 100) + "curl"); rule != "curl" {
		t.Errorf("after much else: %q", rule)
	}
}
