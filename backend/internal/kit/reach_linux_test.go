package kit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// part is the environment variable with the role of this test binary as a child process of a test.
const part = "WORKCELL_TEST_PART"

func TestMain(m *testing.M) {
	if os.Getenv(part) == "listener" {
		listen()
	}
	os.Exit(m.Run())
}

// queue is the length of the listener's connection queue.
const queue = 8

// listen binds a guest agent's address and accepts no connections, until the process is killed.
func listen() {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: wire.SocketName}), unix.Listen(fd, queue))
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listening")
	select {}
}

// TestReachReusedID verifies that two kinds of foreign processes are refused, even though they listen at the guest
// agent's address. One process gets the guest agent's process ID between the check and the connection. The other
// process answers while the guest agent is running.
func TestReachReusedID(t *testing.T) {
	if os.Getenv(part) == "" { // in a separate process namespace, no other process can take the ID
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestReachReusedID$", "-test.v")
		cmd.Env = append(os.Environ(), part+"=namespace")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(t, unix.Mount("proc", "/proc", "proc", 0, ""))
	const group = "/" // every process is in the root group
	guest := startListener(t, embed.Path)
	pid := guest.Process.Pid
	conn, err := dialGuest(pid, group)
	must(t, err)
	g, err := findGuest(pid, group)
	must(t, err)
	kill(guest)
	other := startListener(t, embed.Path)
	for other.Process.Pid != pid {
		kill(other)
		must(t, os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0))
		other = startListener(t, embed.Path)
	}
	if _, err := g.dial(); err == nil {
		t.Error("the process that got the id is taken for the guest")
	}
	// The guest agent exits while the connection is being opened.
	if err := g.answers(conn.(*net.UnixConn)); err == nil {
		t.Error("a guest that ended is taken to answer")
	}
	if conn, err := dialGuest(pid, group); err != nil {
		t.Errorf("a valid guest agent: %v", err)
	} else if err := (&guestProcess{pid: 1, group: group, proc: open(t, "/proc/1")}).answers(conn.(*net.UnixConn)); err == nil {
		t.Error("another process is taken to answer in a guest's place")
	}
	kill(other)
	other = startListener(t, "/bin/other")
	if _, err := dialGuest(other.Process.Pid, group); !errors.Is(err, ErrElsewhere) {
		t.Errorf("another program: %v", err)
	}
	kill(other)
	if _, err := dialGuest(other.Process.Pid, group); !errors.Is(err, ErrNoProcess) || !errors.Is(err, ErrElsewhere) {
		t.Errorf("no program: %v", err)
	}
}

// TestReachBusy verifies that a guest agent with a full connection queue is not reported as lost, and that only the
// engine can reach it.
func TestReachBusy(t *testing.T) {
	guest := startListener(t, embed.Path)
	defer kill(guest)
	pid := guest.Process.Pid
	reach := func() (io.ReadWriteCloser, error) {
		return ReachGuest(t.Context(), "/", pid, func(context.Context) (int, error) { return pid, nil })
	}
	for range queue + 1 {
		conn, err := reach()
		must(t, err)
		defer conn.Close() //nolint:errcheck // the error does not matter
	}
	if _, err := reach(); !errors.Is(err, ErrElsewhere) {
		t.Errorf("a full queue: %v", err)
	}
}

// startListener starts a process with this program name, listening at a guest agent's address.
func startListener(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{name}, Env: []string{part + "=listener"},
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must(t, err)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "listening\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // always fails because of the signal
}

func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(name)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

var must = checktest.Must
