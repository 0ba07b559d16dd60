package egress

import (
	"crypto/ed25519"
	"crypto/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// sshServer serves the repositories in dir to git, to users without a password.
func sshServer(t *testing.T, dir string) (port string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	signer, err := ssh.NewSignerFromKey(key)
	must(t, err)
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { must(t, ln.Close()) })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go serveSSH(conn, config, dir)
		}
	}()
	return portOf(ln.Addr())
}

func serveSSH(conn net.Conn, config *ssh.ServerConfig, dir string) {
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return // the client prints the reason
	}
	go ssh.DiscardRequests(requests)
	for asked := range channels {
		channel, requests, err := asked.Accept()
		if err != nil {
			return
		}
		go func() {
			defer channel.Close() //nolint:errcheck // git prints what is missing
			for r := range requests {
				var line struct{ Command string }
				if r.Type != "exec" || ssh.Unmarshal(r.Payload, &line) != nil {
					_ = r.Reply(r.Type == "env", nil)
					continue
				}
				_ = r.Reply(true, nil)
				name := strings.Trim(strings.TrimPrefix(line.Command, "git-upload-pack "), "'/")
				// #nosec G204 -- the test's sandbox asks
				cmd := exec.Command("git", "upload-pack", filepath.Join(dir, filepath.Base(name)))
				cmd.Stdin, cmd.Stdout = channel, channel
				status := struct{ Code uint32 }{}
				if cmd.Run() != nil {
					status.Code = 1
				}
				_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(status))
				return
			}
		}()
	}
}

// bareRepository makes a repository with one file below dir.
func bareRepository(t *testing.T, dir string) {
	t.Helper()
	for _, line := range []string{
		"git init -q -b main work && cd work && echo 'hello from a repository' > README && git add README",
		"cd work && git -c user.name=t -c user.email=t@example.org commit -q -m first",
		"git clone -q --bare work repo.git && git -C repo.git update-server-info",
	} {
		cmd := exec.Command("sh", "-ec", line)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// TestGitOverSSH clones a repository by SSH without configuration. A rule without the port does not allow it, which git
// prints.
func TestGitOverSSH(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		d, dir := newDesk(t, engine, egress.Limits{}), t.TempDir()
		bareRepository(t, dir)
		port := sshServer(t, dir)
		d.options.AllowRoot = true
		m := d.manager()
		defer func() { must(t, m.Close(t.Context())) }()
		s, _, err := m.Open(t.Context(), session.UserKey("u"+record.NewID()), session.Request{
			Image: d.netImage(), User: "0:0", // ssh requires a user with a name
			Egress: sandbox.Egress{Allow: []string{"git.test:" + port, "other.test"}},
		})
		must(t, err)
		from := func(host string) string { return "git clone -q ssh://git@" + host + ":" + port + "/repo.git " + host }
		d.prints(s, from("git.test")+" && cat git.test/README", "hello from a repository")
		d.fails(s, from("other.test"), "other.test:"+port+" is not allowed", "network.allow")
		d.fails(s, "GIT_SSH_COMMAND=ssh "+from("1.1.1.1"), "unreachable", "no direct network")
	})
}
