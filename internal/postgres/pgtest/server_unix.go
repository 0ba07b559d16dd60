//go:build !windows

package pgtest

import (
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Server is a private PostgreSQL server, which a test may kill and restart.
type Server struct {
	URL string // URL of the database postgres

	t        testing.TB
	bin, dir string
}

// NewServer creates a cluster in a separate directory with additional parameters and starts it. The server is removed
// at the end of the test.
func NewServer(t testing.TB, parameters ...string) *Server {
	t.Helper()
	s := noServer(t)
	s.run("initdb", "--no-sync", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
	s.configure(append(parameters, "listen_addresses = ''")...)
	s.Start()
	t.Cleanup(s.Kill)
	return s
}

// NewStandby starts a standby of s. From then on, s acknowledges a write when it is on both disks.
func (s *Server) NewStandby() *Server {
	s.t.Helper()
	standby := noServer(s.t)
	standby.run("pg_basebackup", "-h", s.dir, "-U", "postgres", "-D", standby.data(), "-R", "-c", "fast", "--no-sync")
	standby.configure()
	standby.Start()
	s.t.Cleanup(standby.Kill)
	Exec(s.t, s.URL, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
	Exec(s.t, s.URL, `SELECT pg_reload_conf()`)
	return standby
}

// Promote makes a standby a primary server that accepts writes.
func (s *Server) Promote() {
	s.t.Helper()
	s.run("pg_ctl", "promote", "-s", "-w", "-t", "120", "-D", s.data())
}

// WithStandby returns the URL of the database postgres on s, or on the standby after the promotion.
func (s *Server) WithStandby(standby *Server) string {
	return strings.Replace(s.URL, url.QueryEscape(s.dir), url.QueryEscape(s.dir+","+standby.dir), 1) + "&target_session_attrs=read-write"
}

// noServer creates the directory of a server.
func noServer(t testing.TB) *Server {
	t.Helper()
	bin, err := exec.Command(script("tool.sh"), "postgres").Output()
	if err != nil {
		t.Fatalf("hack/tool.sh postgres: %v", err)
	}
	// The path of a test's temporary directory may be too long for a socket, and TMPDIR may be closed to the server's
	// user.
	dir, err := os.MkdirTemp("/tmp", "pg-")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &Server{t: t, bin: last(string(bin)), dir: dir}
	s.URL = (&url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/postgres", RawQuery: url.Values{"host": {dir}}.Encode()}).String()
	if os.Geteuid() == 0 {
		id := s.credential()
		must(t, os.Chown(dir, int(id.Uid), int(id.Gid)))
	}
	return s
}

// configure sets parameters and the directory of the server's socket.
func (s *Server) configure(parameters ...string) {
	s.t.Helper()
	config := "unix_socket_directories = '" + s.dir + "'\n" + strings.Join(parameters, "\n") + "\n"
	f, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(config)
	}
	must(s.t, err)
	must(s.t, f.Close())
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// Start starts the server and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.run("pg_ctl", "start", "-s", "-w", "-t", "120", "-D", s.data(), "-l", filepath.Join(s.dir, "log"))
}

// Kill kills the server's processes as a power failure would. If the server is not running, Kill does nothing.
func (s *Server) Kill() {
	s.t.Helper()
	if _, err := os.Stat(filepath.Join(s.data(), "postmaster.pid")); err != nil {
		return
	}
	s.run("pg_ctl", "stop", "-s", "-w", "-t", "120", "-m", "immediate", "-D", s.data())
}

// Pause stops all processes of the server until resume is called. Connections stay open but get no answers.
func (s *Server) Pause() (resume func()) {
	s.t.Helper()
	file, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	must(s.t, err)
	first, _, _ := strings.Cut(string(file), "\n")
	all := []string{first}
	signal := func(pid string, sig syscall.Signal) {
		if n, err := strconv.Atoi(pid); err == nil && n > 1 {
			_ = syscall.Kill(n, sig) // the process of a connection may have exited
		}
	}
	signal(first, syscall.SIGSTOP) // a stopped postmaster starts no other processes
	children, err := os.ReadFile("/proc/" + first + "/task/" + first + "/children")
	if err != nil {
		s.t.Error(err)
	}
	for _, pid := range strings.Fields(string(children)) {
		all = append(all, pid)
		signal(pid, syscall.SIGSTOP)
	}
	return func() {
		for _, pid := range all {
			signal(pid, syscall.SIGCONT)
		}
	}
}

// run runs a program of PostgreSQL. These programs refuse to run as root.
func (s *Server) run(program string, args ...string) {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(s.bin, program), args...)
	cmd.Dir, cmd.Env = s.dir, []string{"LC_ALL=C.UTF-8", "PATH=" + os.Getenv("PATH")}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential()}
	}
	out, err := os.CreateTemp("", "pg-out-") // the server would keep a pipe open
	must(s.t, err)
	defer os.Remove(out.Name()) //nolint:errcheck // the host cleans its temporary files
	defer out.Close()           //nolint:errcheck // it is read by name
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		s.t.Errorf("%s: %v\n%s", program, err, text)
	}
}

// credential returns the user postgres, which Debian's package creates.
func (s *Server) credential() *syscall.Credential {
	s.t.Helper()
	u, err := user.Lookup("postgres")
	must(s.t, err)
	uid, err := strconv.Atoi(u.Uid)
	must(s.t, err)
	gid, err := strconv.Atoi(u.Gid)
	must(s.t, err)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
