package engines

import (
	"context"
	"testing"

	"github.com/workcell-dev/workcell/backend"
)

func TestImageMapFindsEverySpelling(t *testing.T) {
	t.Parallel()
	driver := &imageRecorder{}
	b := MapImages(driver, map[string]string{"docker.io/library/python:3.11-slim": "a.example/py:1",
		"docker.io/library/node:latest": "c.example/node:22"})
	if MapImages(driver, nil) != backend.SandboxBackend(driver) {
		t.Error("an empty map wraps the driver")
	}
	for in, want := range map[string]string{
		"python:3.11-slim":                           "a.example/py:1",
		"docker.io/library/python:3.11-slim":         "a.example/py:1",
		"library/python:3.11-slim":                   "a.example/py:1",
		"python:3.12-slim":                           "python:3.12-slim",
		"node:latest":                                "c.example/node:22",
		"example.com/library/python:3.11-slim":       "example.com/library/python:3.11-slim",
		"not a reference":                            "not a reference",
		"python:3.11-slim@sha256:" + sixtyFour("0a"): "python:3.11-slim@sha256:" + sixtyFour("0a"),
	} {
		if _, err := b.Create(t.Context(), backend.Spec{Image: in}); err != nil {
			t.Fatal(err)
		}
		if driver.image != want {
			t.Errorf("%s became %s, want %s", in, driver.image, want)
		}
	}
}

func sixtyFour(s string) string {
	for len(s) < 64 {
		s += s
	}
	return s[:64]
}

// imageRecorder is a driver that records the requested image.
type imageRecorder struct {
	backend.SandboxBackend
	image string
}

func (r *imageRecorder) Create(_ context.Context, spec backend.Spec) (backend.Info, error) {
	r.image = spec.Image
	return backend.Info{}, nil
}
