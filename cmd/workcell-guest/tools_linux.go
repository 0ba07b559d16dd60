package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

const toolsUsage = `usage: tools ls [SERVER]
       tools search WORDS
       tools show NAME
       tools call NAME [JSON|-] [--save PATH] [--timeout DURATION]
`

// Exit codes of tools, in addition to [exitUnavailable], 1 for a failed tool, and 2 for wrong usage.
const (
	exitDenied  = 77  // EX_NOPERM of sysexits.h
	exitTimeout = 124 // as for timeout(1)
)

// toolsCommand implements the tools command, with which code in a sandbox calls host tools from a shell.
type toolsCommand struct {
	in       io.Reader
	out, err io.Writer
	address  string
	trace    string // traceparent of this process
}

func (c *toolsCommand) run(args []string) int {
	if len(args) == 0 {
		args = []string{""}
	}
	rest := args[1:]
	var err error
	switch verb := args[0]; {
	case verb == "ls" && len(rest) <= 1:
		err = c.list(func(t listedTool) bool { return len(rest) == 0 || t.of(rest[0]) })
	case verb == "search" && len(rest) > 0:
		err = c.list(func(t listedTool) bool { return t.mentions(strings.Fields(strings.Join(rest, " "))) })
	case verb == "show" && len(rest) == 1:
		err = c.show(rest[0])
	case verb == "call" && len(rest) > 0:
		err = c.call(rest[0], rest[1:])
	default:
		err = errUsage
	}
	return c.report(err)
}

var errUsage = errors.New("wrong call")

// report prints an error and returns the exit code.
func (c *toolsCommand) report(err error) int {
	if err == nil {
		return 0
	}
	var failure *toolFailure
	if !errors.As(err, &failure) {
		text, code := "tools: "+err.Error()+"\n", 1
		if errors.Is(err, errUsage) {
			code = 2
		}
		if err == errUsage { //nolint:errorlint // a wrapped errUsage has its own text
			text = toolsUsage
		}
		_, _ = io.WriteString(c.err, text) // a write error cannot be reported anywhere
		return code
	}
	_ = json.NewEncoder(c.err).Encode(failure) // a write error cannot be reported anywhere
	codes := map[string]int{"permission_denied": exitDenied, "timeout": exitTimeout, "unavailable": exitUnavailable}
	return cmp.Or(codes[failure.Code], 1)
}

// listedTool is a tool in the host's list.
type listedTool struct {
	Name        string                     `json:"name"`
	Title       string                     `json:"title,omitempty"`
	Description string                     `json:"description,omitempty"`
	Input       json.RawMessage            `json:"inputSchema,omitempty"`
	Output      json.RawMessage            `json:"outputSchema,omitempty"`
	Annotations json.RawMessage            `json:"annotations,omitempty"`
	Meta        map[string]json.RawMessage `json:"_meta,omitempty"`
}

// index returns the tool's line: the line from the host, which begins with server.tool, or a line from the other
// fields.
func (t listedTool) index() string {
	var line string
	if json.Unmarshal(t.Meta[wire.MetaIndex], &line) == nil && line != "" {
		return line
	}
	first, _, _ := strings.Cut(cmp.Or(t.Description, t.Title), "\n")
	return t.Name + " - " + first
}

func (t listedTool) of(server string) bool {
	return strings.HasPrefix(t.index(), server+".") || strings.HasPrefix(t.Name, server+"_")
}

func (t listedTool) mentions(words []string) bool {
	text := strings.ToLower(t.index() + " " + t.Name + " " + t.Description)
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, strings.ToLower(w)) })
}

func (c *toolsCommand) tools() ([]listedTool, error) {
	var page struct{ Tools []listedTool } // the host lists all tools at once
	err := c.request("tools/list", map[string]any{}, nil, time.Time{}, &page)
	return page.Tools, err
}

func (c *toolsCommand) list(want func(listedTool) bool) error {
	all, err := c.tools()
	if err != nil {
		return err
	}
	found := false
	for _, t := range all {
		if want(t) {
			found = true
			if _, err := fmt.Fprintln(c.out, t.index()); err != nil {
				return err
			}
		}
	}
	if !found {
		return &toolFailure{Code: "not_found", Message: fmt.Sprintf("no match among %d tools", len(all)),
			Remediation: "tools ls lists all."}
	}
	return nil
}

func (c *toolsCommand) show(name string) error {
	all, err := c.tools()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(t listedTool) bool { return t.Name == mcpName(name) })
	if i < 0 {
		return &toolFailure{Code: "not_found", Message: "unknown tool " + name, Remediation: "tools ls lists all."}
	}
	all[i].Meta = nil
	e := json.NewEncoder(c.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(all[i])
}

// mcpName returns the MCP name of a tool with the name server.tool.
func mcpName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
}

func (c *toolsCommand) call(name string, args []string) error {
	flags := flag.NewFlagSet("tools call", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	save := flags.String("save", "", "")
	timeout := flags.Duration("timeout", 0, "")
	input := []byte("{}")
	if len(args) > 0 && (args[0] == "-" || !strings.HasPrefix(args[0], "-")) {
		input = []byte(args[0])
		args = args[1:]
	}
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *timeout < 0 {
		return errUsage
	}
	if string(input) == "-" {
		var err error
		if input, err = io.ReadAll(c.in); err != nil {
			return err
		}
	}
	if !json.Valid(input) || !bytes.HasPrefix(bytes.TrimSpace(input), []byte("{")) {
		return fmt.Errorf("%w: the arguments are not a JSON object: %.100s", errUsage, input)
	}
	var end time.Time
	if *timeout > 0 {
		end = time.Now().Add(*timeout)
	}
	meta := map[string]any{}
	if *save != "" {
		meta[wire.MetaSave] = *save
	}
	params := map[string]any{"name": mcpName(name), "arguments": json.RawMessage(input)}
	var a toolAnswer
	if err := c.request("tools/call", params, meta, end, &a); err != nil {
		return err
	}
	return c.print(a, *save != "")
}

// toolAnswer is the result of a call.
type toolAnswer struct {
	Content []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	} `json:"content"`
	Data    json.RawMessage            `json:"structuredContent"`
	IsError bool                       `json:"isError"`
	Meta    map[string]json.RawMessage `json:"_meta"`
}

func (a toolAnswer) text() string {
	var texts []string
	for _, c := range a.Content {
		if c.Type == "text" {
			texts = append(texts, c.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// print prints a result: data as JSON, or else text. It also prints the content of a result file, unless keep is set.
// The list of additional files goes to standard error.
func (c *toolsCommand) print(a toolAnswer, keep bool) error {
	if a.IsError {
		failed := struct{ Error *toolFailure }{&toolFailure{}}
		if json.Unmarshal(a.Data, &failed) != nil || failed.Error == nil || failed.Error.Code == "" {
			failed.Error = &toolFailure{Code: "tool_failed", Message: a.text()}
		}
		return failed.Error
	}
	if files := a.Meta[wire.MetaFiles]; files != nil {
		_, _ = fmt.Fprintf(c.err, "%s\n", files) // a write error cannot be reported anywhere
	}
	var saved struct {
		File *struct{ Path string } `json:"$saved"`
	}
	switch {
	case a.Data == nil:
		_, err := fmt.Fprintln(c.out, a.text())
		return err
	case keep || json.Unmarshal(a.Data, &saved) != nil || saved.File == nil:
		_, err := fmt.Fprintf(c.out, "%s\n", a.Data)
		return err
	}
	f, err := os.Open(saved.File.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(c.out, f); err != nil {
		return err
	}
	if strings.Contains(saved.File.Path, "/"+wire.PrivateDir+"/results/") { // where only the host creates files
		return os.Remove(saved.File.Path)
	}
	return nil
}
