package kubernetes

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
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

// TestPageOfProxy verifies that a page of a proxy in front of the server does not end a pod or a workspace.
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

// TestRollbackOfClaim verifies that the deletion of a new claim does not wait for a pod that cannot be removed.
func TestRollbackOfClaim(t *testing.T) {
	t.Parallel()
	p := planOf(t)
	var deleted atomic.Bool
	d := fakeDriver(t, func(r *http.Request) any {
		switch {
		case r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/persistentvolumeclaims/"):
			deleted.Store(true)
			return &metav1.Status{Status: metav1.StatusSuccess}
		case strings.Contains(r.URL.Path, "/persistentvolumeclaims/"):
			meta := p.metaOf(backend.RoleWorkspace)
			return &corev1.PersistentVolumeClaim{ObjectMeta: meta}
		}
		meta := p.metaOf(backend.RoleSandbox)
		return &corev1.Pod{ObjectMeta: meta}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := d.rollback(ctx, p); !errors.Is(err, context.DeadlineExceeded) || !deleted.Load() {
		t.Errorf("%v; claim deleted: %v", err, deleted.Load())
	}
}

// TestExecRejected verifies that an exec forbidden by a policy fails at once, and that the error for a guest agent out
// of reach contains the reason. Get fails unless the environment of the image is known.
func TestExecRejected(t *testing.T) {
	t.Parallel()
	p := planOf(t)
	meta := p.metaOf(backend.RoleSandbox)
	pod := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "n"}}
	var exec metav1.Status
	d := fakeDriver(t, func(r *http.Request) any {
		if strings.HasSuffix(r.URL.Path, "/exec") {
			return &apierrors.StatusError{ErrStatus: exec}
		}
		return pod
	})
	exec = metav1.Status{Code: http.StatusBadRequest, Message: `admission webhook "kyverno" denied the request: no exec`}
	_, dialed := d.Dial(t.Context(), p.id())
	_, got := d.Get(t.Context(), p.id())
	_, created := d.await(t.Context(), pod, "", p.id())
	for _, err := range []error{dialed, got, created} {
		if !errors.Is(err, backend.ErrPermission) || !strings.Contains(err.Error(), "no exec") {
			t.Errorf("%v, want ErrPermission with the reason", err)
		}
	}
	d.opts.PullTimeout = time.Second
	exec = metav1.Status{Code: http.StatusInternalServerError, Message: "error dialing backend: connection refused"}
	_, err := d.await(t.Context(), pod, "", p.id())
	if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "error dialing backend") {
		t.Errorf("%v, want ErrUnavailable with the reason", err)
	}
	d.opts.CallTimeout = time.Second
	if _, err = d.Get(t.Context(), p.id()); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("Get without the image's environment: %v, want ErrUnavailable", err)
	}
	env := d.keepEnv(p.id(), "", wire.PodReport{Environ: []string{"PATH=/bin"}})
	if info, err := d.Get(t.Context(), p.id()); err != nil || !slices.Equal(info.ImageEnv, env) {
		t.Errorf("Get of a known environment: %v, %v", info.ImageEnv, err)
	}
}

// TestEnvOfRemoved verifies that the environment of a sandbox that another process removed is not kept forever.
func TestEnvOfRemoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &driver{opts: Options{PullTimeout: time.Minute}}
		d.keepEnv("sandbox", "", wire.PodReport{})
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, kept := d.env.Load("sandbox"); kept {
			t.Error("the environment is kept")
		}
	})
}

// TestInjected verifies that the next pod of a sandbox has only the keys, containers, volumes, and mounts of Workcell,
// and the keys of the current options.
func TestInjected(t *testing.T) {
	t.Parallel()
	mine := map[string]string{"example.com/team": "ml"}
	d := &driver{opts: Options{Labels: mine, Annotations: mine, GuestImage: "guest:1", StorageClass: "standard"}}
	pod := d.manifest(planOf(t))
	want := pod.DeepCopy()
	pod.Labels["injected"], pod.Annotations["ovn.kubernetes.io/ip_address"] = "true", "10.0.0.7"
	mount, sidecar := corev1.VolumeMount{Name: "mesh", MountPath: "/mesh"}, corev1.Container{Name: "mesh"}
	s := &pod.Spec
	s.Volumes = append([]corev1.Volume{{Name: "mesh"}}, s.Volumes...)
	s.InitContainers = append([]corev1.Container{sidecar}, s.InitContainers...)
	s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, mount)
	s.Containers = append(s.Containers, sidecar)
	if diff := cmp.Diff(want, d.again(pod)); diff != "" {
		t.Errorf("next pod (-want +got)\n%s", diff)
	}
}

// TestDeletedPod verifies that a creation waits for an earlier pod of the session that is being deleted.
func TestDeletedPod(t *testing.T) {
	t.Parallel()
	meta := planOf(t).metaOf(backend.RoleSandbox)
	old := meta.DeepCopy()
	old.UID, old.DeletionTimestamp = "old", &metav1.Time{Time: time.Now()}
	var gets atomic.Int32
	d := fakeDriver(t, func(r *http.Request) any {
		pods := schema.GroupResource{Resource: "pods"}
		switch {
		case r.Method == http.MethodGet && gets.Add(1) > 3:
			return apierrors.NewNotFound(pods, old.Name)
		case r.Method == http.MethodPost && gets.Load() <= 3:
			return apierrors.NewAlreadyExists(pods, old.Name)
		}
		return &corev1.Pod{ObjectMeta: *old}
	})
	must(t, d.createPod(t.Context(), &corev1.Pod{ObjectMeta: meta}))
}

// TestDeletedClaim verifies that a claim in deletion does not count as a workspace, and that a creation waits for
// its end.
func TestDeletedClaim(t *testing.T) {
	t.Parallel()
	p := planOf(t)
	meta := p.metaOf(backend.RoleWorkspace)
	meta.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	var gets atomic.Int32
	var created atomic.Bool
	d := fakeDriver(t, func(r *http.Request) any {
		if r.Method == http.MethodPost {
			created.Store(true)
		} else if gets.Add(1) > 3 {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, meta.Name)
		}
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta}
	})
	if has, err := d.HasWorkspace(t.Context(), "i", "a"); has || err != nil {
		t.Errorf("HasWorkspace: %v, %v", has, err)
	}
	if err := d.ensureClaim(t.Context(), p); err != nil || !created.Load() {
		t.Errorf("created: %v, %v", created.Load(), err)
	}
}

// TestStartWithoutClaim verifies that a sandbox whose claim is missing or in deletion does not start, but stays.
func TestStartWithoutClaim(t *testing.T) {
	t.Parallel()
	p := planOf(t)
	meta := p.metaOf(backend.RoleSandbox)
	volume := corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.name}
	pod := &corev1.Pod{ObjectMeta: meta, Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &volume}}}
	ending := metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Now()}}
	for name, claim := range map[string]any{
		"missing":     apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, p.name),
		"in deletion": &corev1.PersistentVolumeClaim{ObjectMeta: ending},
	} {
		d := fakeDriver(t, func(r *http.Request) any {
			switch {
			case r.Method != http.MethodGet:
				t.Errorf("%s: %s %s", name, r.Method, r.URL.Path)
			case strings.Contains(r.URL.Path, "/persistentvolumeclaims/"):
				return claim
			}
			return pod
		})
		if err := d.Start(t.Context(), p.id()); !errors.Is(err, backend.ErrLost) {
			t.Errorf("%s: %v, want ErrLost", name, err)
		}
	}
}

// TestUnknownIsolation verifies that New fails if the server cannot return a RuntimeClass now, because the class would
// count as a container.
func TestUnknownIsolation(t *testing.T) {
	t.Parallel()
	config := fakeServer(t, func(*http.Request) any { return apierrors.NewInternalError(errors.New("no leader")) })
	_, err := New(t.Context(), &Options{Config: config, RuntimeClasses: []string{"gvisor"}})
	if !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("New: %v, want ErrUnavailable", err)
	}
}

// TestLateClass verifies that Create reads a missing RuntimeClass again, and that the class counts as a container until
// then.
func TestLateClass(t *testing.T) {
	t.Parallel()
	var exists atomic.Bool
	config := fakeServer(t, func(*http.Request) any {
		if !exists.Load() {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "runtimeclasses"}, "gvisor")
		}
		return &nodev1.RuntimeClass{Handler: "runsc"}
	})
	b, err := New(t.Context(), &Options{Config: config, RuntimeClasses: []string{"gvisor"}})
	must(t, err)
	defer b.Close() //nolint:errcheck // of a fake server
	for _, want := range []backend.Isolation{backend.IsolationContainer, backend.IsolationKernel} {
		if early, known := b.Capabilities().Isolation["gvisor"]; known {
			t.Errorf("known as %s", early)
		}
		p := planOf(t).Plan
		p.Spec.OCIRuntime = "gvisor"
		if _, err := b.d.newPlan(t.Context(), p); err != nil || p.Isolation != want {
			t.Errorf("isolation %s, %v, want %s", p.Isolation, err, want)
		}
		exists.Store(true)
	}
}

// TestBridgeOptions verifies the policy of bridged sandboxes: rules never allow a denied network, unless a longer
// prefix is allowed. No rule is without peers, because it would allow everything. Other options have another label.
func TestBridgeOptions(t *testing.T) {
	t.Parallel()
	nets := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	labels := map[string]bool{}
	for _, test := range []struct {
		opts Options
		want string // networks with the number of exceptions, and the resolver
	}{
		{Options{}, "0.0.0.0/0-12 2000::/3-4 kube-system/k8s-app=kube-dns:53"},
		{
			Options{DenyNets: nets("2600:db8::/56", "192.0.2.0/24", "fd00::/8")},
			"0.0.0.0/0-13 2000::/3-5 kube-system/k8s-app=kube-dns:53",
		},
		{
			Options{DenyNets: nets("0.0.0.0/0", "::/0"), AllowNets: nets("192.0.2.7/32")},
			"kube-system/k8s-app=kube-dns:53 192.0.2.7/32-0",
		},
		{
			Options{DenyNets: nets("10.1.0.0/16"), AllowNets: nets("10.0.0.0/8", "10.1.2.0/24"), DNSPort: 5353},
			"0.0.0.0/0-13 2000::/3-4 kube-system/k8s-app=kube-dns:5353 10.0.0.0/8-1 10.1.2.0/24-0",
		},
		{
			Options{DNSNamespace: "openshift-dns", DNSLabels: map[string]string{"app.kubernetes.io/name": "coredns"}},
			"0.0.0.0/0-12 2000::/3-4 openshift-dns/app.kubernetes.io/name=coredns:53",
		},
	} {
		must(t, test.opts.checkBridge())
		d := &driver{opts: test.opts}
		var got []string
		for _, rule := range d.networkPolicy(backend.NetworkBridge).Spec.Egress {
			if len(rule.To) == 0 {
				t.Errorf("%s: a rule without peers", test.want)
			}
			for _, to := range rule.To {
				if b := to.IPBlock; b != nil {
					got = append(got, fmt.Sprintf("%s-%d", b.CIDR, len(b.Except)))
					continue
				}
				got = append(got, fmt.Sprintf("%s/%s:%s", to.NamespaceSelector.MatchLabels[corev1.LabelMetadataName],
					metav1.FormatLabelSelector(to.PodSelector), rule.Ports[1].Port))
			}
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("got  %s\nwant %s", text, test.want)
		}
		label := d.networkLabel(backend.NetworkBridge)
		if labels[label] || len(labels) == 0 && label != "bridge" || d.networkLabel(backend.NetworkNone) != "none" {
			t.Errorf("%s: label %s, %v", test.want, label, labels)
		}
		labels[label] = true
	}
	for _, o := range []Options{
		{AllowNets: make([]netip.Prefix, 1)}, {DenyNets: nets("10.0.0.5/8")}, {DenyNets: nets("::ffff:10.0.0.0/104")},
		{AllowNets: nets("10.0.0.0/8"), DenyNets: nets("10.0.0.0/8")}, {DNSPort: 1 << 16}, {DNSNamespace: "a/b"},
		{DNSLabels: map[string]string{"a b": ""}},
	} {
		if err := o.checkBridge(); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", o.bridge(), err)
		}
	}
}

// TestNewCA verifies that a running process trusts a new certificate authority of the cluster.
func TestNewCA(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.crt")
	config := &rest.Config{Host: "https://192.0.2.1", TLSClientConfig: rest.TLSClientConfig{CAFile: file}}
	d := &driver{opts: Options{Config: config}}
	must(t, os.WriteFile(file, authority(t), 0o600))
	must(t, d.configure())
	next := authority(t)
	must(t, os.WriteFile(file, next, 0o600))
	now, err := rest.TLSConfigFor(d.config)
	must(t, err)
	want := x509.NewCertPool()
	if want.AppendCertsFromPEM(next); !now.RootCAs.Equal(want) {
		t.Error("the former authority is trusted")
	}
}

// authority returns a new certificate in the PEM format.
func authority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	text, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{}, &x509.Certificate{}, key.Public(), key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: text})
}

// TestSilentProxy verifies that a stream through a proxy that does not answer fails when its context ends.
func TestSilentProxy(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close() //nolint:errcheck // it also closes the waiting connections
	proxy := &url.URL{Scheme: "http", Host: l.Addr().String()}
	up, err := newUpgrade(&rest.Config{Proxy: http.ProxyURL(proxy)}, nil)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://192.0.2.1/", nil)
	must(t, err)
	if _, err := up.RoundTrip(req); !errors.Is(err, context.DeadlineExceeded) { //nolint:bodyclose // there is none
		t.Errorf("%v, want %v", err, context.DeadlineExceeded)
	}
}

// planOf returns the plan of a sandbox.
func planOf(t *testing.T) *plan {
	t.Helper()
	checked, err := kit.NewPlan(name, backend.Spec{ID: "a", Instance: "i", Image: "debian:12"}, nil, backend.Limits{})
	must(t, err)
	return &plan{Plan: checked, name: objectName("a"), nonce: "abcdefghijklmnopqrstuvwxyz", network: "none"}
}
