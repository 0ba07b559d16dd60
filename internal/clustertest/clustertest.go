// Package clustertest connects tests to the cluster of `make cluster`, and creates namespaces for tests.
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

// StorageClass is the storage class for volumes in the cluster.
const StorageClass = "workcell-test"

// Node is the name of the cluster's only node.
const Node = "127.0.0.1"

// Service is the address of the API server for pods. It is an address of the node.
const Service = "10.214.0.1"

// Containerd is the socket of the node's containerd.
const Containerd = "/run/workcell/cluster/containerd.sock"

// NamespaceVariable is set to the name of the namespace from Namespace, for the tests and their processes.
const NamespaceVariable = "WORKCELL_TEST_NAMESPACE"

// Leaks returns options to ignore certain goroutines of client-go. If a stream to a pod is canceled while it is being
// opened, client-go closes the connection but keeps waiting for a stream added afterwards.
func Leaks() []goleak.Option {
	const shutdown = "github.com/moby/spdystream.(*Connection).shutdown"
	return []goleak.Option{goleak.IgnoreAnyFunction(shutdown), goleak.IgnoreAnyFunction(shutdown + ".func1")}
}

// Kubeconfig returns the path of the kubeconfig file for the cluster.
func Kubeconfig() string {
	if file := os.Getenv("WORKCELL_TEST_KUBECONFIG"); file != "" {
		return file
	}
	return "/var/lib/workcell/cluster/kubeconfig"
}

// Config returns the configuration for a client with administrator permissions.
func Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("no cluster: %w; `make cluster` starts one", err)
	}
	config.QPS, config.Burst = 200, 400
	return config, rest.LoadTLSFiles(config)
}

// Kind returns a function that returns a client for one kind of object. If the kind is not namespaced, the namespace
// argument of the client is empty. The clientset of client-go would link every kind into every test.
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
			panic(err) // the configuration comes from Config
		}
		return gentype.NewClientWithList(resource, api, parameters, namespace, func() O { return new(T) }, func() OL { return new(L) }, gentype.PrefersProtobuf[O]())
	}
}

// The usual kinds in tests.
var (
	Namespaces             = Kind[corev1.Namespace, corev1.NamespaceList](corev1.SchemeGroupVersion, "namespaces")
	PersistentVolumeClaims = Kind[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](corev1.SchemeGroupVersion, "persistentvolumeclaims")
	Pods                   = Kind[corev1.Pod, corev1.PodList](corev1.SchemeGroupVersion, "pods")
	Secrets                = Kind[corev1.Secret, corev1.SecretList](corev1.SchemeGroupVersion, "secrets")
	ServiceAccounts        = Kind[corev1.ServiceAccount, corev1.ServiceAccountList](corev1.SchemeGroupVersion, "serviceaccounts")
)

// Namespace creates a namespace with the restricted Pod Security Standard, and returns a function to remove it. In a
// process started by a test, it returns the namespace of the test.
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
		// An idle connection stays open for 90 s, and leak checks would wait for it.
		defer utilnet.CloseIdleConnectionsFor(namespaces.GetClient().(*rest.RESTClient).Client.Transport)
		return namespaces.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
	}
	if err := Make(ctx, api, ns); err != nil {
		return "", nil, fmt.Errorf("no cluster: %w; `make cluster` starts one", err)
	}
	return name, remove, os.Setenv(NamespaceVariable, name)
}

// Make creates a namespace and waits for the service account, because pods are refused without it. If Make fails, it
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

// Main runs the tests of a package in a new namespace, and returns the exit code.
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

// Options returns options for a driver in a namespace of the cluster.
func Options(namespace string) *kubernetes.Options {
	return &kubernetes.Options{
		Kubeconfig: Kubeconfig(), Namespace: namespace, GuestImage: guestimage.Reference(), StorageClass: StorageClass,
		// To ensure that the node has enough CPUs for all concurrent sandboxes.
		Limits: backend.Limits{CPUMillis: 500},

		NetworkPolicyEnforced: true, // by e2e/cluster/addons
	}
}
