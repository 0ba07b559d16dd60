//go:build linux

package faults

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// TestFirstSandboxes verifies that several programs can open the first sandboxes of an engine at the same time, and
// that they keep only one of the networks that they have created.
func TestFirstSandboxes(t *testing.T) {
	t.Parallel()
	x := newPrivate(t, "docker", "500M", false)
	open := func(l *library) {
		key := session.WorkflowKey(session.NewRunID(), "first")
		_, _, err := l.Open(t.Context(), key, session.Request{Image: image, Network: backend.NetworkBridge})
		if err != nil {
			t.Error(err)
		}
	}
	libraries := make([]*library, 6)
	var group sync.WaitGroup
	for i := range libraries {
		libraries[i] = x.library(t, x.driver(t))
		group.Go(func() { open(libraries[i]) })
	}
	group.Wait()
	api := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(x.DockerHost(), "unix://"))
	}}}
	for range 2 { // current clients ask the engine to refuse this
		res, err := api.Post("http://engine/v1.41/networks/create", "application/json", strings.NewReader(`{
			"Name": "workcell", "Labels": {"dev.workcell.role": "network"},
			"Options": {"com.docker.network.bridge.enable_icc": "false"}}`))
		must(t, err)
		must(t, res.Body.Close())
		if res.StatusCode != http.StatusCreated && res.StatusCode != http.StatusConflict { // current engines refuse it
			t.Errorf("create another network: %s", res.Status)
		}
	}
	group.Go(func() { open(libraries[0]) })
	open(libraries[1])
	group.Wait()
	list := x.Run(t, "docker --host "+x.DockerHost()+" network ls --quiet --filter name=workcell")
	if strings.Count(list, "\n") != 1 {
		t.Errorf("networks: %q", list)
	}
}
