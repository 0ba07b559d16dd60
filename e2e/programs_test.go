package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record/postgres"
)

// programEnv makes the test binary run as the other program. The value has the URL of the database, and whether the
// program joins.
const programEnv = "WORKCELL_TEST_PROGRAM"

// library opens a manager of the library like a program would.
func library(t *testing.T, url string, join bool) *session.Manager {
	t.Helper()
	store, err := postgres.Open(t.Context(), url)
	must(t, err)
	b, err := docker.New(t.Context(), &docker.Options{Host: os.Getenv("DOCKER_HOST")})
	must(t, err)
	m, err := session.NewManager(b, &session.Options{Instance: "programs" + url[strings.Index(url, "_test_")+6:strings.Index(url, "?")], Store: store, Join: join})
	must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(m.Close(context.Background()), store.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}

func say(t *testing.T, s *session.Session, command string) string {
	t.Helper()
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: command})
	must(t, err)
	return string(res.Stdout.Bytes())
}

// ownerOf returns the owner of a sandbox.
func ownerOf(t *testing.T, url, id string) string {
	t.Helper()
	store, err := postgres.Open(t.Context(), url)
	must(t, err)
	defer store.Close() //nolint:errcheck // only read from
	rec, err := store.Get(t.Context(), id)
	must(t, err)
	return rec.Owner
}

// TestTwoPrograms verifies two programs with the library and one database, which open the same name. With Options.Join,
// both use one sandbox, even if one of them is killed. Without it, the second gets an error and connects instead.
func TestTwoPrograms(t *testing.T) {
	t.Parallel()
	key, req := session.UserKey("lab"), session.Request{Image: "workcell/python:3.11"}
	if url, join := strings.CutPrefix(os.Getenv(programEnv), "join "); url != "" { // run as the other program
		s, _, err := library(t, url, join).Open(t.Context(), key, req)
		must(t, err)
		say(t, s, "echo first > file")
		fmt.Println("opened", s.ID())
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed or the input is closed
		must(t, s.Close(t.Context()))
		return
	}
	for name, join := range map[string]bool{"join": true, "alone": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			m := library(t, url, join)
			other := exec.Command(os.Args[0], "-test.run=^TestTwoPrograms$", "-test.v")
			other.Env = append(os.Environ(), programEnv+"="+map[bool]string{true: "join "}[join]+url)
			in, err := other.StdinPipe()
			must(t, err)
			out, err := other.StdoutPipe()
			must(t, err)
			must(t, other.Start())
			ended := make(chan error, 1)
			id, lines := "", bufio.NewScanner(out)
			for id == "" && lines.Scan() {
				_, id, _ = strings.Cut(lines.Text(), "opened ")
			}
			go func() { _, _ = io.Copy(io.Discard, out); ended <- other.Wait() }()
			t.Cleanup(func() { _ = other.Process.Kill() })

			s, created, err := m.Open(t.Context(), key, req)
			if !join {
				if !errors.Is(err, backend.ErrExists) || !strings.Contains(fmt.Sprint(err), "another process") {
					t.Errorf("Open = %v, want ErrExists", err)
				}
				if s, err = m.Connect(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				if got := say(t, s, "cat file"); got != "first\n" {
					t.Errorf("the file says %q", got)
				}
				_ = in.Close() // the program ends, and closes the sandbox
				if err := <-ended; err != nil {
					t.Errorf("the other program: %v", err)
				}
				if s, created, err = m.Open(t.Context(), key, req); err != nil || !created || s.ID() == id {
					t.Fatalf("Open after its end = %v, %v", created, err)
				}
			} else {
				if err != nil || created || s.ID() != id {
					t.Fatalf("Open = %v, %v, want %s", created, err, id)
				}
				var conflict *session.ConflictError
				if _, _, err := library(t, url, true).Open(t.Context(), key, session.Request{Image: "workcell/debian:12"}); !errors.As(err, &conflict) || !slices.Contains(conflict.Fields, "image") {
					t.Errorf("Open of something else = %v", err)
				}
				must(t, other.Process.Kill())
				<-ended
				if got := say(t, s, "cat file"); got != "first\n" {
					t.Errorf("after the other was killed the file says %q", got)
				}
				// After the lease has expired, the next opener adopts the sandbox.
				for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Second) {
					third := library(t, url, true)
					again, created, err := third.Open(t.Context(), key, req)
					if err != nil || created || again.ID() != id {
						t.Fatalf("Open after the death = %v, %v", created, err)
					}
					list, err := admin.Abandoned(t.Context(), third)
					if err != nil || time.Now().After(deadline) {
						t.Fatalf("the sandbox is not adopted: %v, %v", list, err)
					}
					if len(list) == 0 && ownerOf(t, url, id) == third.Owner() {
						break
					}
					must(t, third.Detach(t.Context()))
				}
				if got := say(t, s, "cat file"); got != "first\n" {
					t.Errorf("after its adoption the file says %q", got)
				}
			}
			must(t, s.Close(t.Context()))
			if list, err := m.Backend().List(t.Context(), backend.Filter{Instance: m.Instance()}); err != nil || len(list) != 0 {
				t.Errorf("sandboxes are left: %v, %v", list, err)
			}
		})
	}
}
