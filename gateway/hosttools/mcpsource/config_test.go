package mcpsource_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/hosttools/mcpsource"
	"github.com/workcell-dev/workcell/internal/checktest"
)

func variables(name string) (string, bool) {
	v, ok := map[string]string{"GITHUB_TOKEN": "ghp_0123456789", "EMPTY": ""}[name]
	return v, ok
}

func TestParseConfig(t *testing.T) {
	t.Parallel()
	c, err := mcpsource.ParseConfig("f.yaml", []byte(`
servers:
  github:
    command: [npx, -y, "@modelcontextprotocol/server-github@2025.4.8"]
    env: {TOKEN: "${GITHUB_TOKEN}", LITERAL: "$${X}", N: 1}
    start: eager
  orders:
    url: https://tools.example/mcp
    headers: {Authorization: "Bearer ${GITHUB_TOKEN}"}
    timeout_seconds: 5
policy: {deny: ["*.delete_*"], ask: ["github.merge_*"], limits: {calls: 2000}}
`), variables)
	checktest.Must(t, err)
	if len(c.Servers) != 2 || !c.Servers[0].Eager || c.Servers[1].Timeout != 5*time.Second {
		t.Errorf("servers %+v", c.Servers)
	}
	env := map[string]string{}
	for name, s := range c.Servers[0].Env {
		env[name] = s.Reveal()
	}
	if diff := cmp.Diff(map[string]string{"TOKEN": "ghp_0123456789", "LITERAL": "${X}", "N": "1"}, env); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want := hosttools.Policy{Deny: []string{"*.delete_*"}, Ask: []string{"github.merge_*"}, Limits: hosttools.Limits{Calls: 2000}}
	if diff := cmp.Diff(want, c.Policy); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	shown, err := json.Marshal(c)
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %x %d", c.Servers, c.Servers, c.Servers, c.Servers[0].Env["TOKEN"], c.Servers[0].Env["TOKEN"]), string(shown)} {
		if err != nil || strings.Contains(text, "ghp_") {
			t.Errorf("the secret is shown: %s, %v", text, err)
		}
	}
	if got := c.Servers[1].Redactor()("token ghp_0123456789 was refused"); got != "token [redacted] was refused" {
		t.Error(got)
	}
}

func TestFilesThatAreWrong(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		"server: {}":                                                                 `f.yaml:1:1: unknown key "server" in the file; did you mean "servers"?`,
		"servers: []":                                                                "f.yaml:1:10: servers must be a mapping, not a list",
		"servers: {a.b: {url: http://x}}":                                            `f.yaml:1:11: invalid server name "a.b": use at most 32 letters, digits, '_', or '-', starting with a letter`,
		"servers: {sandbox: {url: http://x}}":                                        `f.yaml:1:11: invalid server name "sandbox": the name is reserved`,
		"servers: {app: {url: http://x}}":                                            `f.yaml:1:11: "app" is reserved for the program's own tools; use another name`,
		"servers: {a: {}}":                                                           "f.yaml:1:11: server a has neither a command nor a url; set command or url",
		"servers: {a: {url: http://x, command: [b]}}":                                "f.yaml:1:11: server a has a command and a url; remove one of the two",
		"servers: {a: {url: http://x, env: {B: c}}}":                                 "f.yaml:1:11: server a has keys that it cannot use; use env with command, and headers with url",
		"servers: {a: {url: ftp://x}}":                                               "f.yaml:1:20: url is not an http or https URL; for example https://tools.example/mcp",
		"servers: {a: {url: 'http://u:hunter2@x'}}":                                  "f.yaml:1:20: url contains a password; use headers",
		"servers: {a: {command: [b, '${GITHUB_TOKEN}']}}":                            "f.yaml:1:28: servers.a.command[1] cannot contain variables; use variables only in env and headers",
		"servers: {a: {command: [b], env: {C: '${NOPE}'}}}":                          "f.yaml:1:38: the variable NOPE is not set; set it, or remove it from the file",
		"servers: {a: {command: [b], env: {C: '${GITHUB_TOKEN'}}}":                   "f.yaml:1:38: invalid variable; write ${NAME}, and $${ for ${ itself",
		"servers: {a: {command: [b], env: {'C=D': x}}}":                              `f.yaml:1:35: invalid name "C=D" in env`,
		"servers: {a: {url: http://x, headers: {B: \"c\\r\\nd: ${GITHUB_TOKEN}\"}}}": "f.yaml:1:43: the value of servers.a.headers.B contains a newline or a NUL byte",
		"servers: {a: {command: [b], start: eagr}}":                                  `f.yaml:1:36: unknown start "eagr"; did you mean "eager"?`,
		"servers: {a: {command: [b], timeout_seconds: 0}}":                           "f.yaml:1:46: servers.a.timeout_seconds is 0; remove it to use the default",
		"servers: {a: {command: [b], pin: abc}}":                                     `f.yaml:1:34: "abc" is not a digest; write sha256: and 64 hexadecimal digits`,
		"policy: {deny: [delete]}":                                                   `f.yaml:1:17: "delete" is not a tool name; use server.tool, such as orders.lookup or github.get_*`,
		"policy: {limits: {call: 1}}":                                                `f.yaml:1:19: unknown key "call" in policy.limits; did you mean "calls"?`,
		"policy: {limits: {calls: many}}":                                            "f.yaml:1:26: policy.limits.calls must be a whole number, not text",
		"policy:":                                                                    "f.yaml:1:8: policy is empty; set a value or remove the key",
		"a: 1\n---\nb: 2":                                                            "f.yaml:2: more than one YAML document; remove the second one",

		"servers: {a: {url: http://x, headers: {host: b}}}":    `f.yaml:1:40: invalid or repeated name "host" in headers`,
		"servers: {a: {url: http://x, headers: {B: c, b: d}}}": `f.yaml:1:46: invalid or repeated name "b" in headers`,
	} {
		_, err := mcpsource.ParseConfig("f.yaml", []byte(src), variables)
		if err == nil || err.Error() != want {
			t.Errorf("%s:\n%v\nwant\n%s", src, err, want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add("servers:\n  a: {command: [b], env: {C: '${GITHUB_TOKEN}'}}\npolicy: {deny: ['*.x'], limits: {calls: 3}}")
	f.Add("servers: {a: &x {url: http://x, headers: {B: '${GITHUB_TOKEN'}}, b: *x}")
	f.Fuzz(func(t *testing.T, src string) {
		c, err := mcpsource.ParseConfig("f.yaml", []byte(src), variables)
		if err != nil {
			if strings.Contains(err.Error(), "ghp_0123456789") && !strings.Contains(src, "ghp_0123456789") {
				t.Errorf("the error has a secret: %v", err)
			}
			return
		}
		for _, s := range c.Servers {
			if (len(s.Command) == 0) == (s.URL == "") {
				t.Errorf("server %+v", s)
			}
		}
	})
}
