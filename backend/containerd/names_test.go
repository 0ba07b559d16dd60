//go:build linux

package containerd_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/containerd"
)

// copyRecord creates a copy of a sandbox's container record with another ID and nonce.
func copyRecord(t *testing.T, id, container, own string) {
	t.Helper()
	api := engineAPI(t).ContainerService()
	c, err := api.Get(t.Context(), containerd.ContainerOf(id))
	must(t, err)
	renamed := func(a typeurl.Any) typeurl.Any {
		value := bytes.ReplaceAll(a.GetValue(), []byte(c.ID), []byte(container))
		return &anypb.Any{TypeUrl: a.GetTypeUrl(), Value: value}
	}
	extensions := map[string]typeurl.Any{}
	for name, e := range c.Extensions {
		extensions[name] = renamed(e)
	}
	c.Labels[backend.LabelPrefix+"nonce"] = own
	_, err = api.Create(t.Context(), containers.Container{
		ID: container, Labels: c.Labels, Image: c.Image, Spec: renamed(c.Spec), Runtime: c.Runtime,
		Snapshotter: c.Snapshotter, SnapshotKey: container, Extensions: extensions,
	})
	must(t, err)
}

// TestLateRecord verifies that a late record, which a dead process requested, can be removed after the session has a
// new sandbox, and that this does not affect the new sandbox.
func TestLateRecord(t *testing.T) {
	t.Parallel()
	b := newBackend(t, nil)
	spec := newSpec()
	info := backendtest.Create(t, b, spec)
	conn := backendtest.Dial(t, b, info.ID)
	backendtest.Sh(t, conn, "echo kept > file")
	late := containerd.SessionName(spec.ID) + "." + rand.Text()
	copyRecord(t, info.ID, containerd.ContainerOf(late), late[len(late)-26:])
	if list, err := b.List(t.Context(), backend.Filter{SessionID: spec.ID}); err != nil || len(list) != 2 {
		t.Errorf("List: %+v, %v, want 2", list, err)
	}
	backendtest.Fails(t, "Create", second(b.Create(t.Context(), spec)), backend.ErrExists)
	backendtest.Remove(t, b, late)
	backendtest.Prints(t, conn, "cat file", "kept\n")
	backendtest.Remove(t, b, info.ID)
	nothingLeft(t, spec.ID)
}

// TestTwoInstallations verifies that at most one of two installations succeeds if they create a sandbox of the same
// session concurrently.
func TestTwoInstallations(t *testing.T) {
	t.Parallel()
	makers := []*containerd.Backend{newBackend(t, nil), newBackend(t, func(o *containerd.Options) { o.StateDir = t.TempDir() })}
	for range 5 {
		spec := newSpec()
		infos := make([]backend.Info, len(makers))
		var wg sync.WaitGroup
		for i, b := range makers {
			wg.Go(func() {
				var err error
				if infos[i], err = b.Create(context.Background(), spec); err != nil && !errors.Is(err, backend.ErrExists) {
					t.Errorf("Create: %v", err)
				}
			})
		}
		wg.Wait()
		if infos[0].ID != "" && infos[1].ID != "" {
			t.Errorf("both did: %s, %s", infos[0].ID, infos[1].ID)
		}
		for i, b := range makers {
			if id := infos[i].ID; id != "" {
				backendtest.Exec(t, backendtest.Dial(t, b, id), "/bin/true")
				backendtest.Remove(t, b, id)
			}
		}
		nothingLeft(t, spec.ID)
	}
}
