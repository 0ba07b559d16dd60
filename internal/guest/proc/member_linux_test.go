package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Where the kernel takes no tags, a process belongs to the exec whose marker it or an ancestor has in its environment.
func TestMemberWithoutTags(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/bin/sh", "-c", "env -i /bin/sh -c 'echo $$; read x'; true")
	cmd.Env = []string{"PATH=/usr/bin:/bin", markerName + "=mine"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	tags := &tracker{own: os.Getpid()}
	for _, pid := range []int{cmd.Process.Pid, child} {
		member := tags.Member(pid)
		if !member(nil, "mine") || member(nil, "min") || member(nil, "another") {
			t.Errorf("process %d: %v, %v, %v", pid, member(nil, "mine"), member(nil, "min"), member(nil, "another"))
		}
	}
	if Program(child) != "sh" {
		t.Errorf("its name is %q", Program(child))
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Error(err)
	}
}
