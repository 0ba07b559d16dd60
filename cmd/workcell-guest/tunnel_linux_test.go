package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
)

// TestTunnel verifies that bytes pass in both directions after the proxy agreed, even if the host sends first, a
// refusal is printed with the reason, and a hostile proxy cannot increase the memory usage.
func TestTunnel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer, want string // response of the proxy; expected output
		code         int
	}{
		"agreed":  {"HTTP/1.1 200 Connection established\r\n\r\nSSH-2.0-host\r\n", "SSH-2.0-host\r\nto the host", 0},
		"refused": {"HTTP/1.1 403 No\r\nA: b\r\n\r\nnot allowed\nA hint.\n", "403 No\nnot allowed\nA hint.\n", 1},
		"closed":  {"", "no valid response", 1},
		"endless": {"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", maxHeaderLines), "too many header lines", 1},
		"wide":    {"HTTP/1.1 200 " + strings.Repeat("x", 1<<16) + "\r\n\r\n", "no valid response", 1},
		"other":   {"SSH-2.0-host\r\n\r\n", "SSH-2.0-host", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close() //nolint:errcheck // only used to accept
			asked := make(chan string, 1)
			go func() {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				defer conn.Close() //nolint:errcheck // the client detects the end
				r := bufio.NewReader(conn)
				first, _ := r.ReadString('\n') // the checks below detect missing data
				_, _ = r.ReadString('\n')
				_, _ = r.ReadString('\n')
				asked <- strings.TrimSpace(first)
				_, _ = io.WriteString(conn, c.answer)
				if c.code == 0 {
					_, _ = io.Copy(conn, r)
				}
			}()
			var out, errs bytes.Buffer
			code := tunnel([]string{"h", "22"}, "http://"+ln.Addr().String(), strings.NewReader("to the host"), &out, &errs)
			if all := out.String() + errs.String(); code != c.code || !strings.Contains(all, c.want) || len(all) > 8<<10 {
				t.Errorf("code %d, %q, %q", code, out.String(), errs.String())
			}
			if got := <-asked; got != "CONNECT h:22 HTTP/1.1" {
				t.Errorf("asked %q", got)
			}
		})
	}
	const nothing = "http://127.0.0.1:1"
	for _, bad := range [][]string{
		{"h", "22", ""}, {"h", "22", "http://x.example:1"}, {"h", "", nothing}, {"a b", "22", nothing},
	} {
		if code := tunnel(bad[:2], bad[2], strings.NewReader(""), io.Discard, io.Discard); code != 1 {
			t.Errorf("%q: code %d", bad, code)
		}
	}
}
