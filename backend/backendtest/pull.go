package backendtest

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/workcell-dev/workcell/backend"
)

func pullChecks() []check {
	return []check{
		{"missing", (*suite).pullMissing},
		{"lying digest", (*suite).pullLyingDigest},
		{"password", (*suite).pullPassword},
		{"shared", (*suite).pullShared},
	}
}

// fetch returns the spec of a sandbox whose image may have to be pulled.
func (s *suite) fetch(ref string) backend.Spec {
	spec := s.spec()
	spec.Image, spec.Pull = ref, backend.PullMissing
	return spec
}

func (s *suite) pullMissing(t *testing.T) {
	r := newRegistry(t, "")
	ref, digest := r.push(t, s.h.Images, "acme/app:1", BuildImage(t, v1.Config{Env: []string{"FROM_IMAGE=yes"}}, Unique()))
	var seen []backend.PullProgress
	spec := s.fetch(ref)
	spec.OnPull = func(p backend.PullProgress) { seen = append(seen, p) }
	info := s.create(t, spec)
	if !s.h.Cluster && (len(seen) == 0 || seen[0].Image != ref) {
		t.Errorf("progress: %+v", seen)
	}
	// The runtime of a cluster adds environment variables.
	if info.Image != ref || len(info.ImageEnv) != 1 && !s.h.Cluster || !slices.Contains(info.ImageEnv, "FROM_IMAGE=yes") {
		t.Errorf("info: image %q, env %q", info.Image, info.ImageEnv)
	}
	hits := r.hits.Load()
	s.create(t, s.fetch(ref))
	if n := r.hits.Load(); n != hits {
		t.Errorf("an existing image was fetched again")
	}
	always := s.fetch(ref)
	always.Pull = backend.PullAlways
	s.create(t, always)
	if n := r.hits.Load(); n == hits {
		t.Errorf("PullAlways asked no registry")
	}
	for _, ref := range []string{r.host + "/acme/app@" + digest.String(), r.host + "/acme/app:other@" + digest.String()} {
		if got := s.create(t, s.fetch(ref)); got.ImageID != info.ImageID && !s.h.Cluster {
			t.Errorf("by digest: image %s, want %s", got.ImageID, info.ImageID)
		}
	}
}

// with returns a backend with image options. The end of the test closes it.
func (s *suite) with(t *testing.T, o ImageOptions) backend.SandboxBackend {
	t.Helper()
	b := s.h.Images.New(t, o)
	t.Cleanup(func() { must(t, b.Close()) })
	return b
}

// pullLyingDigest verifies that a pull fails if the registry's content does not match the digest.
func (s *suite) pullLyingDigest(t *testing.T) {
	r := newRegistry(t, "")
	_, good := r.push(t, s.h.Images, "acme/lie:1", BuildImage(t, v1.Config{}, Unique()))
	_, evil := r.push(t, s.h.Images, "acme/lie:2", BuildImage(t, v1.Config{}, Unique()))
	r.on(func(_ http.ResponseWriter, q *http.Request) bool {
		q.URL.Path = strings.Replace(q.URL.Path, "/manifests/"+good.String(), "/manifests/"+evil.String(), 1)
		return true
	})
	spec := s.lone(t)
	spec.Image, spec.Pull = r.host+"/acme/lie@"+good.String(), backend.PullMissing
	Fails(t, "Create", second(s.b.Create(t.Context(), spec)), backend.ErrImage)
}

func (s *suite) pullPassword(t *testing.T) {
	r := newRegistry(t, "joe")
	ref, _ := r.push(t, s.h.Images, "acme/private:1", BuildImage(t, v1.Config{}, Unique()))
	for name, dir := range map[string]string{"anonymous": "", "wrong password": r.dockerConfig(t, "wrong-"+registryPassword)} {
		_, err := s.with(t, ImageOptions{ConfigDir: dir}).Create(t.Context(), s.fetch(ref))
		if !errors.Is(err, backend.ErrImage) {
			t.Errorf("%s: %v, want ErrImage", name, err)
			continue
		}
		forAgents(t, err)
		if strings.Contains(err.Error(), registryPassword) || (dir != "" && strings.Contains(err.Error(), dir)) {
			t.Errorf("%s: the error tells too much: %v", name, err)
		}
	}
	info, err := s.with(t, ImageOptions{ConfigDir: r.dockerConfig(t, registryPassword)}).Create(t.Context(), s.fetch(ref))
	must(t, err)
	Remove(t, s.b, info.ID)
}

// pullShared verifies that an image is pulled once if many callers need it at the same time and some of them give up.
func (s *suite) pullShared(t *testing.T) {
	r := newRegistry(t, "")
	ref, _ := r.push(t, s.h.Images, "acme/shared:1", BuildImage(t, v1.Config{}, Unique()))
	release := make(chan struct{})
	var asked, fetched atomic.Int64
	r.on(func(_ http.ResponseWriter, q *http.Request) bool {
		if strings.Contains(q.URL.Path, "/manifests/") {
			asked.Add(1)
			<-release
		}
		if strings.Contains(q.URL.Path, "/blobs/") && q.Method == http.MethodGet {
			fetched.Add(1)
		}
		return true
	})
	b := s.backend(t)
	var left, wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if info, err := b.Create(t.Context(), s.fetch(ref)); err != nil {
				t.Errorf("stayed: %v", err)
			} else {
				Remove(t, s.b, info.ID)
			}
		})
	}
	// A pull that all its callers have left is canceled, so the first caller must be one that stays.
	Eventually(t, "the pull begins", func() bool { return asked.Load() > 0 })
	for range 3 {
		left.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			Fails(t, "left", second(b.Create(ctx, s.fetch(ref))), context.DeadlineExceeded)
		})
	}
	left.Wait()
	close(release)
	wg.Wait()
	if n := fetched.Load(); n != 2 { // the configuration and the only layer
		t.Errorf("%d blobs were fetched, want 2", n)
	}
}
