package frontmatter_test

import (
	"testing"

	"github.com/workcell-dev/workcell/frontmatter"
)

func TestOutputs(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		"outputs: [r.csv, \"d/**?\"]\nsandbox: {mode: code}": "",
		"outputs: [r.csv]":                                  "x.prompt:2:10: outputs require a persistent sandbox; add sandbox: {mode: code}, or remove outputs",
		"sandbox: python\noutputs: [r.csv]":                 "x.prompt:3:10: outputs require a persistent sandbox; add sandbox: {mode: code}, or remove outputs",
		"sandbox: {mode: code, outputs: [../x]}":            `x.prompt:2:33: the output "../x" is not a path below /workspace; for example report.csv, "dist/**" or "coverage.xml?"`,
		"sandbox: {runtime: python, outputs: [x]}":          "x.prompt:2:37: outputs require mode code, script, or executor; in compute mode every call has a fresh sandbox; add mode: code, or remove it",
		"sandbox: {mode: code, outputs: [x]}\noutputs: [x]": "x.prompt:3:10: the outputs are declared twice; remove one of the two",
		"outputs: r.csv\nsandbox: {mode: code}":             "x.prompt:2:10: outputs must be a list, not text",
		"outputs: []\nsandbox: {mode: code}":                "",
		"outputs: [ok, ../x]\nsandbox: {mode: code}":        `x.prompt:2:15: the output "../x" is not a path below /workspace; for example report.csv, "dist/**" or "coverage.xml?"`,
	} {
		doc, err := frontmatter.Parse("x.prompt", []byte("---\n"+src+"\n---\nx"))
		switch {
		case want == "" && err != nil, want != "" && (err == nil || err.Error() != want):
			t.Errorf("%q: %v, want %s", src, err, want)
		case err == nil && len(doc.Outputs()) > 0 && doc.Outputs()[1] != "d/**?":
			t.Errorf("%q: %q", src, doc.Outputs())
		}
	}
}

func TestServices(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		"{services: [github, {name: jira, allow: [\"GET /x/**\"]}]}": "",
		"{services: github}":                             "x.prompt:2:21: sandbox.services must be a list, not text",
		"{services: [Git Hub]}":                          `x.prompt:2:22: "Git Hub" is not the name of a service; use at most 32 lower case letters, digits, or '-', and begin with a letter`,
		"{services: [a, a]}":                             `x.prompt:2:25: duplicate service "a"; remove one of the two`,
		"{services: [{allow: [GET /]}]}":                 `x.prompt:2:22: "" is not the name of a service; use at most 32 lower case letters, digits, or '-', and begin with a letter`,
		"{services: [{name: a, allow: [GET /, GET x]}]}": `x.prompt:2:47: "GET x" is not a request rule; write a method and a path, for example GET /repos/**`,
		"{services: [a], network: {enabled: true}}":      "x.prompt:2:21: services require a sandbox without a network and cannot be used with network.enabled; remove one of the two",
		"{services: [a], network: {enabled: false}}":     "",
		"{services: [a], network: {allow: [x.example]}}": "",
		"{setup: {run: [x], network: {services: [a]}}}":  `x.prompt:2:39: unknown key "services" in sandbox.setup.network; available: allow, deny`,
	} {
		doc, err := frontmatter.Parse("x.prompt", []byte("---\nsandbox: "+src+"\n---\nx"))
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%q: %v, want %s", src, err, want)
		}
		if err == nil && doc.Sandbox.Services[0].Name == "" {
			t.Errorf("%q: %+v", src, doc.Sandbox.Services)
		}
	}
}
