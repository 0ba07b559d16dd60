// Package clustertest leads tests to the cluster that `make cluster` starts, and makes namespaces of their own in it.
package clustertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/guestimage"
)

// StorageClass is that of the cluster's volumes.
const StorageClass = "workcell-test"

// Node is the cluster's only one.
const Node = "127.0.0.1"

// Service is the address of the API server for pods, which the node has.
const Service = "10.214.0.1"

// Containerd is the socket of the node.
const Containerd = "/run/workcell/cluster/containerd.sock"

// NamespaceVariable names the namespace that Namespace made to the tests, and to the processes that they start.
const NamespaceVariable = "WORKCELL_TEST_NAMESPACE"

// Leaks are goroutines that client-go leaves when a stream to a pod is given up in the moment in which it is opened:
// the connection is closed, but its end waits for a stream that was added to it afterwards.
func Leaks() []goleak.Option {
	const shutdown = "github.com/moby/spdystream.(*Connection).shutdown"
	return []goleak.Option{goleak.IgnoreAnyFunction(shutdown), goleak.IgnoreAnyFunction(shutdown + ".func1")}
}

// Kubeconfig returns the file that leads to the cluster.
func Kubeconfig() string {
	if file := os.Getenv("WORKCELL_TEST_KUBECONFIG"); file != "" {
		return file
	}
	return "/var/lib/workcell/cluster/kubeconfig"
}

// Config returns the configuration of an administrator's client.
func Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("no cluster: %w; `make cluster` starts one", err)
	}
	config.QPS, config.Burst = 200, 400
	return config, rest.LoadTLSFiles(config)
}

// Kind returns a function that returns a client of a kind. The namespace of the client is empty if objects of the kind
// have none. The clientset of client-go would link every kind into every test.
func Kind[T, L any, O interface {
	*T
	runtime.Object
	metav1.Object
}, OL interface {
	*L
	runtime.Object
}](group schema.GroupVersion, resource string) func(config *rest.Config, namespace string) *gentype.ClientWithList[O, OL] {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(group, O(new(T)), OL(new(L)))
	metav1.AddToGroupVersion(scheme, group)
	codecs, parameters := serializer.NewCodecFactory(scheme).WithoutConversion(), runtime.NewParameterCodec(scheme)
	return func(config *rest.Config, namespace string) *gentype.ClientWithList[O, OL] {
		config = rest.CopyConfig(config)
		if config.APIPath = "/apis"; group.Group == "" {
			config.APIPath = "/api"
		}
		config.GroupVersion, config.NegotiatedSerializer = &group, codecs
		api, err := rest.RESTClientFor(config)
		if err != nil {
			panic(err) // the configuration is that of Config
		}
		return gentype.NewClientWithList(resource, api, parameters, namespace, func() O { return new(T) }, func() OL { return new(L) }, gentype.PrefersProtobuf[O]())
	}
}

// The kinds that tests use most.
var (
	Namespaces             = Kind[corev1.Namespace, corev1.NamespaceList](corev1.SchemeGroupVersion, "namespaces")
	PersistentVolumeClaims = Kind[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](corev1.SchemeGroupVersion, "persistentvolumeclaims")
	Pods                   = Kind[corev1.Pod, corev1.PodList](corev1.SchemeGroupVersion, "pods")
	Secrets                = Kind[corev1.Secret, corev1.SecretList](corev1.SchemeGroupVersion, "secrets")
	ServiceAccounts        = Kind[corev1.ServiceAccount, corev1.ServiceAccountList](corev1.SchemeGroupVersion, "serviceaccounts")
)

// Namespace makes a namespace that enforces the restricted Pod Security Standard, and returns what removes it. In a
// process that a test started it is that of the test.
func Namespace(ctx context.Context) (name string, remove func() error, err error) {
	if name := os.Getenv(NamespaceVariable); name != "" {
		return name, func() error { return nil }, nil
	}
	api, err := Config()
	if err != nil {
		return "", nil, err
	}
	name = "workcell-test-" + strings.ToLower(rand.Text())[:10]
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted",
	}}}
	namespaces := Namespaces(api, "")
	remove = func() error {
		// A connection that idles for 90 s would hold checks for leaks up.
		defer utilnet.CloseIdleConnectionsFor(namespaces.GetClient().(*rest.RESTClient).Client.Transport)
		return namespaces.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
	}
	if err := Make(ctx, api, ns); err != nil {
		return "", nil, fmt.Errorf("no cluster: %w; `make cluster` starts one", err)
	}
	return name, remove, os.Setenv(NamespaceVariable, name)
}

// Make creates a namespace and waits for its service account, because pods are refused without it. If Make fails, it
// removes the namespace.
func Make(ctx context.Context, api *rest.Config, ns *corev1.Namespace) error {
	_, err := Namespaces(api, "").Create(ctx, ns, metav1.CreateOptions{})
	for made := err == nil; made; time.Sleep(20 * time.Millisecond) {
		if _, err = ServiceAccounts(api, ns.Name).Get(ctx, "default", metav1.GetOptions{}); err == nil {
			return nil
		}
		if !apierrors.IsNotFound(err) || ctx.Err() != nil {
			return errors.Join(err, Namespaces(api, "").Delete(context.WithoutCancel(ctx), ns.Name, metav1.DeleteOptions{}))
		}
	}
	return err
}

// Main runs the tests of a package in a namespace of their own, and returns the exit code.
func Main(m interface{ Run() int }) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, remove, err := Namespace(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	return m.Run()
}

// Options returns the options of a driver on a namespace of the cluster.
func Options(namespace string) *kubernetes.Options {
	return &kubernetes.Options{
		Kubeconfig: Kubeconfig(), Namespace: namespace, GuestImage: guestimage.Reference(), StorageClass: StorageClass,
		Limits: backend.Limits{CPUMillis: 500}, // so that the node has room for all that run at a time

		NetworkPolicyEnforced: true, // e2e/cluster/addons enforces them
	}
}
