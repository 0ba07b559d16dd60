package containerd_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
)

// unique makes images that no other test's pull can have brought.
func unique() entry { return entry{name: "unique", data: rand.Text()} }

func pullSpec(ref string) backend.Spec {
	s := newSpec()
	s.Image, s.Pull = ref, backend.PullMissing
	return s
}

func TestPull(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "")
	img := buildImage(t, v1.Config{Env: []string{"FROM_IMAGE=yes"}}, unique())
	ref, digest := r.push(t, "acme/app:1", img)
	b := newBackend(t, nil)

	var seen []backend.PullProgress
	spec := pullSpec(ref)
	spec.OnPull = func(p backend.PullProgress) { seen = append(seen, p) }
	info := create(t, b, spec)
	if len(seen) == 0 || seen[0].Image != ref {
		t.Errorf("progress: %+v", seen)
	}
	if info.Image != ref || len(info.ImageEnv) != 1 || info.ImageEnv[0] != "FROM_IMAGE=yes" {
		t.Errorf("info: image %q, env %q", info.Image, info.ImageEnv)
	}

	hits := r.hits.Load()
	create(t, b, pullSpec(ref))
	if n := r.hits.Load(); n != hits {
		t.Errorf("an image that is there was fetched again")
	}
	always := pullSpec(ref)
	always.Pull = backend.PullAlways
	create(t, b, always)
	if n := r.hits.Load(); n == hits {
		t.Errorf("PullAlways asked no registry")
	}
	byDigest := pullSpec(r.host + "/acme/app@" + digest.String())
	if got := create(t, b, byDigest); got.ImageID != info.ImageID {
		t.Errorf("by digest: image %s, want %s", got.ImageID, info.ImageID)
	}
	both := pullSpec(r.host + "/acme/app:other@" + digest.String())
	if got := create(t, b, both); got.ImageID != info.ImageID {
		t.Errorf("by tag and digest: image %s, want %s", got.ImageID, info.ImageID)
	}
}

func TestPullRefused(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "")
	ref, digest := r.push(t, "acme/refused:1", buildImage(t, v1.Config{}, unique()))
	other := digest.Hex[32:] + digest.Hex[:32]
	policy, err := backend.NewImagePolicy(r.host+"/acme/*", "python")
	if err != nil {
		t.Fatal(err)
	}
	open, guarded := newBackend(t, nil), newBackend(t, func(o *containerd.Options) { o.Images = policy })
	never := pullSpec(ref)
	never.Pull = backend.PullNever
	for _, c := range []struct {
		name string
		b    *containerd.Backend
		spec backend.Spec
		want error
	}{
		{"missing tag", open, pullSpec(r.host + "/acme/refused:2"), backend.ErrImage},
		{"missing repository", open, pullSpec(r.host + "/acme/nothing:1"), backend.ErrImage},
		{"unknown digest", open, pullSpec(r.host + "/acme/refused@sha256:" + other), backend.ErrImage},
		{"no registry", open, pullSpec("127.0.0.1:1/acme/app:1"), backend.ErrImage},
		{"never", open, never, backend.ErrImage},
		{"malformed", open, pullSpec("UPPER/case"), backend.ErrInvalid},
		{"an id", open, pullSpec(strings.Repeat("ab", 32)), backend.ErrInvalid},
		{"not allowed", guarded, pullSpec(debianImage), backend.ErrPermission},
		{"not allowed, upper case", guarded, pullSpec("PYTHON"), backend.ErrPermission},
		{"not allowed, by digest", guarded, pullSpec("python@" + digest.String()), backend.ErrPermission},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if _, err := c.b.Create(t.Context(), c.spec); !errors.Is(err, c.want) {
				t.Errorf("Create: %v, want %v", err, c.want)
			}
			nothingLeft(t, c.spec.ID)
		})
	}
}

// TestPullLyingDigest has a registry that answers another content than the digest names.
func TestPullLyingDigest(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "")
	_, good := r.push(t, "acme/lie:1", buildImage(t, v1.Config{}, unique()))
	_, evil := r.push(t, "acme/lie:2", buildImage(t, v1.Config{}, unique()))
	r.on(func(_ http.ResponseWriter, q *http.Request) bool {
		q.URL.Path = strings.Replace(q.URL.Path, "/manifests/"+good.String(), "/manifests/"+evil.String(), 1)
		return true
	})
	spec := pullSpec(r.host + "/acme/lie@" + good.String())
	if _, err := newBackend(t, nil).Create(t.Context(), spec); !errors.Is(err, backend.ErrImage) {
		t.Errorf("Create: %v, want ErrImage", err)
	}
	nothingLeft(t, spec.ID)
}

func TestPullAuth(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "joe")
	ref, _ := r.push(t, "acme/private:1", buildImage(t, v1.Config{}, unique()))
	for name, dir := range map[string]string{"anonymous": "", "wrong password": r.dockerConfig(t, "wrong-"+registryPassword)} {
		b := newBackend(t, func(o *containerd.Options) { o.ConfigDir = dir })
		_, err := b.Create(t.Context(), pullSpec(ref))
		if !errors.Is(err, backend.ErrImage) {
			t.Errorf("%s: %v, want ErrImage", name, err)
		}
		if strings.Contains(err.Error(), registryPassword) || (dir != "" && strings.Contains(err.Error(), dir)) {
			t.Errorf("%s: the error tells too much: %v", name, err)
		}
	}
	b := newBackend(t, func(o *containerd.Options) { o.ConfigDir = r.dockerConfig(t, registryPassword) })
	create(t, b, pullSpec(ref))
}

// TestPullHanging has a registry that never answers: a pull ends with its caller or with its own timeout.
func TestPullHanging(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "")
	ref, _ := r.push(t, "acme/slow:1", buildImage(t, v1.Config{}, unique()))
	asked, over := make(chan struct{}, 100), make(chan struct{})
	r.on(func(_ http.ResponseWriter, q *http.Request) bool {
		if !strings.Contains(q.URL.Path, "/manifests/") {
			return true
		}
		asked <- struct{}{}
		select {
		case <-q.Context().Done():
		case <-over:
		}
		return false
	})
	defer close(over)
	b := newBackend(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	spec := pullSpec(ref)
	if _, err := b.Create(ctx, spec); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v, want context.Canceled", err)
	}
	nothingLeft(t, spec.ID)

	impatient := newBackend(t, func(o *containerd.Options) { o.PullTimeout = 200 * time.Millisecond })
	if _, err := impatient.Create(t.Context(), pullSpec(ref)); !errors.Is(err, backend.ErrImage) {
		t.Errorf("timed out: %v, want ErrImage", err)
	}
}

// TestPullShared lets many want one image at a time, and some give up.
func TestPullShared(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, "")
	ref, _ := r.push(t, "acme/shared:1", buildImage(t, v1.Config{}, unique()))
	var pulls atomic.Int64
	release := make(chan struct{})
	r.on(func(_ http.ResponseWriter, q *http.Request) bool {
		if strings.Contains(q.URL.Path, "/manifests/") {
			if q.Method == http.MethodHead { // which begins a pull
				pulls.Add(1)
			}
			<-release
		}
		return true
	})
	b := newBackend(t, nil)
	const stay, leave = 5, 3
	var wg sync.WaitGroup
	var left sync.WaitGroup
	for range leave {
		left.Add(1)
		wg.Go(func() {
			defer left.Done()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := b.Create(ctx, pullSpec(ref)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("left: %v, want context.DeadlineExceeded", err)
			}
		})
	}
	for range stay {
		wg.Go(func() {
			info, err := b.Create(t.Context(), pullSpec(ref))
			if err != nil {
				t.Errorf("stayed: %v", err)
				return
			}
			remove(t, b, info.ID)
		})
	}
	left.Wait()
	close(release)
	wg.Wait()
	if n := pulls.Load(); n != 1 {
		t.Errorf("%d pulls, want one", n)
	}
}
