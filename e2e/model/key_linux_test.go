package model

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/sandbox"
)

// TestNoKeyInside: the operator's key is in no process, file, environment, or answer of the sandbox, and in no span,
// log, or answer outside. To prove the search of a place, the lease's key must be found there.
func TestNoKeyInside(t *testing.T) {
	on(t, func(t *testing.T, d *desk) {
		ask := "for b in ({**BODY, 'stream': True}, {**BODY, 'model': 'large'}, BODY): ask(b)\nask(BODY, '/v1/nothing')\n"
		// The program has sent its requests and stays, to allow an examination from outside.
		res, err := d.s.Exec(t.Context(), sandbox.ExecRequest{
			Argv:  []string{"python3", "-c", inside + ask + "import time\nopen('/workspace/asked', 'w').close(); time.sleep(600)", d.lease.Key(), d.at.BaseURL("anthropic")},
			Yield: time.Millisecond,
		})
		must(t, err)
		for {
			if _, err := d.s.StatFile(t.Context(), "/workspace/asked"); err == nil {
				break
			}
			must(t, t.Context().Err())
			time.Sleep(20 * time.Millisecond)
		}
		t.Run("memory", func(t *testing.T) {
			lease, key := inMemory(t, d.lease.Key())
			if lease == 0 || len(key) > 0 {
				t.Errorf("the lease's key is in %d processes, the operator's in %v", lease, key)
			}
		})
		t.Run("inside", func(t *testing.T) {
			seen, found := inFiles(t, d)
			if seen == 0 || len(found) > 0 {
				t.Errorf("the lease's key was seen %d times, the operator's in %v", seen, found)
			}
		})
		_, err = d.s.Command(res.ExecID).Signal(t.Context(), "")
		must(t, err)
		spans, err := json.Marshal(d.spans.GetSpans())
		must(t, err)
		for place, text := range map[string]string{"spans": string(spans), "log": d.log.String()} {
			if strings.Contains(text, canary) || strings.Contains(text, d.lease.Key()) {
				t.Errorf("a key is in the %s", place)
			}
		}
		if !strings.Contains(string(spans), "chat small") {
			t.Error("the spans do not contain the requests")
		}
	})
}

// inFiles searches all files, environments, and command lines from inside, and an answer. The program has the key's
// bytes inverted and searches inverted contents, to avoid finding itself.
func inFiles(t *testing.T, d *desk) (seen int, found []string) {
	t.Helper()
	wanted := []byte(canary)
	for i := range wanted {
		wanted[i] ^= 0xff
	}
	out := d.python(d.lease, "anthropic", `
import glob, os
wanted, known = bytes.fromhex("`+hex.EncodeToString(wanted)+`"), KEY.encode()
inverted = bytes(255 - i for i in range(256))
found, seen = [], 0
def look(path, data=None):
    global seen
    try: data = data or open(path, "rb").read(1 << 24)
    except OSError: return
    seen += known in data
    if wanted in data.translate(inverted): found.append(path)
for p in glob.glob("/proc/[0-9]*"):
    for name in ("environ", "cmdline", "comm", "status"): look(p + "/" + name)
for top in ("/workspace", "/tmp", "/etc", "/run", "/.workcell", "/home", "/root", "/dev/shm", "/var"):
    for dir, _, files in os.walk(top):
        for f in files:
            if os.path.isfile(os.path.join(dir, f)): look(os.path.join(dir, f))
request = urllib.request.Request(BASE + "/v1/messages", json.dumps(BODY).encode(), {"x-api-key": KEY})
with urllib.request.urlopen(request) as answer: look("answer", str(answer.headers).encode() + answer.read())
print(json.dumps([seen, found]))`)
	if err := json.Unmarshal([]byte(out), &[]any{&seen, &found}); err != nil {
		t.Fatal(err, out)
	}
	return seen, found
}

// inMemory searches the memory of all processes in the sandbox. These share a PID namespace with a process whose
// command line contains the lease's key. It returns the number of processes with the lease's key, and the processes
// with the operator's key.
func inMemory(t *testing.T, lease string) (with int, found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	own, err := os.Readlink("/proc/self/ns/pid")
	must(t, err)
	namespace := ""
	for _, p := range all {
		line, err := os.ReadFile(p + "/cmdline")
		if ns, nserr := os.Readlink(p + "/ns/pid"); err == nil && nserr == nil && ns != own && bytes.Contains(line, []byte(lease)) {
			namespace = ns
		}
	}
	if namespace == "" {
		t.Fatal("the program inside is not among the processes of this machine")
	}
	for _, p := range all {
		if ns, err := os.Readlink(p + "/ns/pid"); err != nil || ns != namespace {
			continue
		}
		memory := readMemory(t, p)
		if bytes.Contains(memory, []byte(lease)) {
			with++
		}
		if bytes.Contains(memory, []byte(canary)) {
			found = append(found, p)
		}
	}
	return with, found
}

// readMemory returns the readable memory of a process.
func readMemory(t *testing.T, proc string) []byte {
	t.Helper()
	maps, err := os.ReadFile(proc + "/maps")
	if err != nil {
		return nil // it has exited
	}
	mem, err := os.Open(proc + "/mem")
	if err != nil {
		t.Fatalf("memory of another process: %v", err)
	}
	defer mem.Close()
	var out []byte
	for s := bufio.NewScanner(bytes.NewReader(maps)); s.Scan(); {
		var lo, hi int64
		var mode string
		if _, err := fmt.Sscanf(s.Text(), "%x-%x %s", &lo, &hi, &mode); err != nil || mode[0] != 'r' || hi-lo > 128<<20 || strings.Contains(s.Text(), "[v") {
			continue
		}
		part := make([]byte, hi-lo)
		n, _ := mem.ReadAt(part, lo) // an error leaves a partial result
		out = append(out, part[:n]...)
	}
	return out
}
