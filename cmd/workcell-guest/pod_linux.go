package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// The functions below are for pods of a cluster, where no engine copies files into a container or reports the image's
// settings.

// report writes the pod's environment as JSON.
func report(w io.Writer) error {
	return json.NewEncoder(w).Encode(wire.PodReport{Environ: os.Environ()})
}

// install copies the directory with this program and the other files to another directory. The optional second argument
// is a workspace directory to create, because the root of a volume does not belong to the pod's user.
func install(args []string) error {
	if len(args) != 1 && len(args) != 2 {
		return errors.New("usage: workcell-guest install DIRECTORY [WORKSPACE]")
	}
	self, err := os.Executable()
	if err == nil {
		err = os.CopyFS(args[0], os.DirFS(filepath.Dir(self)))
	}
	if err == nil {
		err = filepath.WalkDir(args[0], func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				err = os.Chmod(path, 0o444) //nolint:gosec // sandboxes read it
			}
			return err
		})
	}
	if err == nil { // the mode allows no reading, so the process memory is protected
		err = os.Chmod(filepath.Join(args[0], filepath.Base(self)), 0o111)
	}
	if err == nil && len(args) == 2 {
		err = makeWorkspace(args[1])
	}
	return err
}

// makeWorkspace creates a directory of this user. It keeps an existing directory unchanged.
func makeWorkspace(dir string) error {
	err := os.Mkdir(dir, 0o755) //nolint:gosec // as every workspace
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return errors.Join(err, os.Chmod(dir, 0o755)) //nolint:gosec // whatever the umask and the volume say
}

// trialCode is the exit code of network-trial dial if it reached no target. Each reached target adds a bit.
const trialCode = 64

// trialPause is the pause between two attempts of network-trial dial.
const trialPause = 50 * time.Millisecond

// networkTrial listens on a port until it is killed, or tries to reach targets for some time. It retries for the whole
// time, because a pod may be connected late and a block must last.
func networkTrial(args []string) int {
	if len(args) == 2 && args[0] == "listen" {
		return fail(os.Stderr, trialListen(net.JoinHostPort("", args[1])))
	}
	var patience time.Duration
	var err error
	if len(args) > 2 {
		patience, err = time.ParseDuration(args[1])
	}
	if len(args) < 3 || args[0] != "dial" || err != nil {
		return fail(os.Stderr, errors.New("usage: workcell-guest network-trial listen PORT | dial DURATION TARGETS"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var reached atomic.Int32
	var dialing sync.WaitGroup
	for i, target := range args[2:] {
		dialing.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(trialPause) {
				if trialReaches(ctx, target) {
					reached.Or(1 << i)
					return
				}
			}
		})
	}
	dialing.Wait()
	return trialCode + int(reached.Load())
}

// trialListen accepts TCP connections and answers UDP packets.
func trialListen(address string) error {
	packets, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	go func() {
		b := make([]byte, 1)
		for {
			_, from, err := packets.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(b, from) // the sender tries again if it is lost
		}
	}()
	l, err := net.Listen("tcp", address)
	for err == nil {
		var c net.Conn
		if c, err = l.Accept(); err == nil {
			err = c.Close()
		}
	}
	return err
}

// trialReaches tries to reach a target: tcp:ADDRESS, udp:ADDRESS, which must answer, dns: (the pod's resolver), or api:
// (the API server).
func trialReaches(ctx context.Context, target string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	network, address, _ := strings.Cut(target, ":")
	switch network {
	case "dns":
		_, err := (&net.Resolver{PreferGo: true}).LookupHost(ctx, "kubernetes.default.svc")
		is := (*net.DNSError)(nil)
		return err == nil || errors.As(err, &is) && is.IsNotFound // not-found is an answer too
	case "api":
		network, address = "tcp", net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	}
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return false
	}
	defer c.Close() // the result is already known
	if network == "tcp" {
		return true
	}
	_ = c.SetDeadline(time.Now().Add(time.Second)) // if this fails, the next call fails too
	_, err = c.Write([]byte{0})
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	return err == nil
}
