package kubernetes

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
)

var must = checktest.Must

// fakeServer returns the configuration of an API server whose objects and errors come from answer. A string is a page
// of a proxy in front of the server.
func fakeServer(t *testing.T, answer func(*http.Request) any) *rest.Config {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		object := any(version.Info{GitVersion: "v1.34.0"})
		if r.URL.Path != "/version" {
			object = answer(r)
		}
		w.Header().Set("Content-Type", "application/json")
		switch o := object.(type) {
		case string:
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusNotFound)
		case *apierrors.StatusError:
			o.ErrStatus.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			w.WriteHeader(int(o.ErrStatus.Code))
			object = o.ErrStatus
		}
		must(t, json.NewEncoder(w).Encode(object))
	}))
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL}
}

func fakeDriver(t *testing.T, answer func(*http.Request) any) *driver {
	t.Helper()
	b, err := New(t.Context(), &Options{Config: fakeServer(t, answer), StorageClass: "standard"})
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	return b.d
}

// TestPageOfProxy verifies that a page of a proxy in front of the server says nothing about a pod or a workspace.
func TestPageOfProxy(t *testing.T) {
	t.Parallel()
	d := fakeDriver(t, func(*http.Request) any { return "default backend - 404" })
	_, err := d.Get(t.Context(), "workcell-a.abcdefghijklmnopqrstuvwxyz")
	_, other := d.HasWorkspace(t.Context(), "i", "a")
	for _, err := range []error{err, other} {
		if !errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
	}
}
