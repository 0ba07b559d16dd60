//go:build !no_ui

package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
)

var localNames = regexp.MustCompile(`\bworkcell-[0-9a-f]{16}\.localhost\b`)

// serveUI starts `workcell ui` and returns a client after the login. at is the server's URL.
func (u user) serveUI(args ...string) (c *http.Client, at string, stop func()) {
	cmd := u.command(append([]string{"ui", "--no-open", "--listen", "127.0.0.1:0"}, args...)...)
	out, err := cmd.StdoutPipe()
	checktest.Must(u.t, err)
	checktest.Must(u.t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	checktest.Must(u.t, err)
	jar, _ := cookiejar.New(nil) // never fails
	c = &http.Client{Jar: jar}
	link, err := url.Parse(strings.TrimSpace(line))
	if err != nil || !localNames.MatchString(link.Hostname()) {
		u.t.Fatalf("link %q: %v", line, err)
	}
	link.Host = "127.0.0.1:" + link.Port()
	if page := u.fetch(c, link.String()); !strings.Contains(page, "<h1>Runs</h1>") {
		u.t.Errorf("after the login: %s", page)
	}
	return c, "http://" + link.Host, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()                          // ended by the signal
	}
}

func (u user) fetch(c *http.Client, at string) string {
	u.t.Helper()
	req, err := http.NewRequestWithContext(u.t.Context(), http.MethodGet, at, nil)
	checktest.Must(u.t, err)
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	res, err := c.Do(req)
	checktest.Must(u.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		u.t.Errorf("%s: %s, %v: %s", at, res.Status, err, body)
	}
	return string(body)
}

// TestUISandboxes verifies that the pages show a sandbox of another process, the commands with output, and the
// files, and a second command finds the running server.
func TestUISandboxes(t *testing.T) {
	t.Parallel()
	u := newUser(t, "local")
	_, s := ownedSandbox(t, u.environ)
	exec := func(command string) string {
		res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: command})
		checktest.Must(t, err)
		return res.ExecID
	}
	exec("mkdir dir tmp; printf 'text\\n' >'dir/a b.txt'; printf '<svg onload=x>' >i.svg; echo out >/tmp/f; echo in >tmp/f")
	id := exec("printf '\\033[32mgreen\\033[0m <b>\\n'; printf '\\033]0;title\\007last' >&2")
	c, at, stop := u.serveUI()
	defer stop()
	for path, parts := range map[string][]string{
		"/sandboxes":           {s.ID(), "running", "local"},
		"/sandboxes/" + s.ID(): {id, "completed", "memory"},
		"/sandboxes/" + s.ID() + "/execs/" + id: {`<span class="f2">green</span>`, "&lt;b&gt;",
			`\x1b]0;title\x07last`, "exit 0"},
		"/sandboxes/" + s.ID() + "/execs/" + id + "/events": {`{"c":"f2","t":"green"}`, `"t":" \u003cb\u003e"`,
			"event: end"},
		"/sandboxes/" + s.ID() + "/files":                  {"dir/", "i.svg"},
		"/sandboxes/" + s.ID() + "/files?file=dir/a+b.txt": {"<pre>text\n</pre>"},
		"/sandboxes/" + s.ID() + "/files?file=i.svg":       {"&lt;svg onload=x&gt;"},
		"/sandboxes/" + s.ID() + "/raw/dir/a%20b.txt":      {"text\n"},
		"/sandboxes/" + s.ID() + "/files?file=/tmp/f":      {"/raw/%2Ftmp%2Ff"},
		"/sandboxes/" + s.ID() + "/raw/%2Ftmp%2Ff":         {"out\n"},
		"/sandboxes?run=none":                              {"This run has no sandboxes."},
	} {
		page := u.fetch(c, at+path)
		for _, p := range parts {
			if !strings.Contains(page, p) {
				t.Errorf("%s does not contain %q: %s", path, p, page)
			}
		}
	}
	again, _ := u.run(0, "ui", "--no-open") // finds the running server
	again = localNames.ReplaceAllString(strings.TrimSpace(again), "127.0.0.1")
	if !strings.HasPrefix(again, at) {
		t.Errorf("second link %q", again)
	}
	if page := u.fetch(&http.Client{Jar: c.Jar}, again); !strings.Contains(page, "<h1>Runs</h1>") {
		t.Errorf("second login: %s", page)
	}
}

// TestUIApproves verifies that calls of a run without a terminal wait while a page is open, and the page's answers
// reach the code.
func TestUIApproves(t *testing.T) {
	t.Parallel()
	u := newUser(t, "local")
	c, at, stop := u.serveUI()
	defer stop()
	run := u.command(asking(t)...)
	var out bytes.Buffer
	run.Stdout = &out
	checktest.Must(t, run.Start())
	question := regexp.MustCompile(`action="(/inbox/[^/]+/)allow"`)
	for _, answer := range []string{"allow", "deny", "tool"} {
		var found []string
		for found == nil {
			time.Sleep(50 * time.Millisecond) // the server limits the rate of requests
			found = question.FindStringSubmatch(u.fetch(c, at+"/inbox"))
		}
		res, err := c.PostForm(at+found[1]+answer, nil)
		checktest.Must(t, err)
		_ = res.Body.Close() // nothing is left to read
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("an answer without an origin: %s", res.Status)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at+found[1]+answer, nil)
		checktest.Must(t, err)
		req.Header.Set("Sec-Fetch-Site", "same-origin")
		if res, err = c.Do(req); err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(res.Body)
		_ = res.Body.Close() // it was read
		if err != nil || !strings.Contains(string(page), "orders.refund</b>: ") {
			t.Errorf("after %s: %s, %v: %s", answer, res.Status, err, page)
		}
	}
	if err := run.Wait(); err != nil || !strings.Contains(out.String(), "answers: yes\nno\nyes\nyes\nyes") {
		t.Errorf("the run: %v\n%s", err, out.String())
	}
}
