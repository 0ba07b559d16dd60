package kubernetes

import (
	"context"
	"errors"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// clients contains a client for each kind of object. The clientset of client-go would link all kinds of Kubernetes
// objects, and its package gentype would link the server of its tests.
type clients struct {
	core       rest.Interface
	parameters runtime.ParameterCodec
	namespaces client[corev1.Namespace, corev1.NamespaceList]
	pods       client[corev1.Pod, corev1.PodList]
	volumes    client[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList]
	networks   client[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList]
	classes    client[nodev1.RuntimeClass, nodev1.RuntimeClassList]
}

func newClients(config *rest.Config, h *http.Client, namespace string) (*clients, error) {
	s := runtime.NewScheme()
	kinds := runtime.SchemeBuilder{corev1.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme}
	failed := kinds.AddToScheme(s)
	codecs, params := serializer.NewCodecFactory(s).WithoutConversion(), runtime.NewParameterCodec(s)
	group := func(path string, version schema.GroupVersion) rest.Interface {
		c := rest.CopyConfig(config)
		c.APIPath, c.GroupVersion, c.NegotiatedSerializer = path, &version, codecs
		client, err := rest.RESTClientForConfigAndClient(c, h)
		failed = errors.Join(failed, err)
		return client
	}
	core := group("/api", corev1.SchemeGroupVersion)
	config.RateLimiter = core.GetRateLimiter() // the groups share one, as in the clientset
	networks, nodes := group("/apis", networkingv1.SchemeGroupVersion), group("/apis", nodev1.SchemeGroupVersion)
	of := func(api rest.Interface, kind string) requests { return requests{api, params, kind, namespace} }
	return &clients{
		core, params, client[corev1.Namespace, corev1.NamespaceList]{requests{core, params, "namespaces", ""}},
		client[corev1.Pod, corev1.PodList]{of(core, "pods")},
		client[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList]{of(core, "persistentvolumeclaims")},
		client[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList]{of(networks, "networkpolicies")},
		client[nodev1.RuntimeClass, nodev1.RuntimeClassList]{requests{nodes, params, "runtimeclasses", ""}},
	}, failed
}

// requests contains the common settings of the requests for one kind.
type requests struct {
	api             rest.Interface
	params          runtime.ParameterCodec
	kind, namespace string
}

func (r *requests) to(verb *rest.Request, options runtime.Object) *rest.Request {
	return verb.UseProtobufAsDefaultIfPreferred(true).NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.kind).
		VersionedParams(options, r.params)
}

// do sends a request and returns the object in the response.
func do[T any](ctx context.Context, r *rest.Request) (*T, error) {
	object := new(T)
	return object, r.Do(ctx).Into(any(object).(runtime.Object))
}

// client is a client for objects of type T and lists of type L. *T and *L must implement runtime.Object.
type client[T, L any] struct{ requests }

func (c *client[T, L]) Get(ctx context.Context, name string) (*T, error) {
	return do[T](ctx, c.to(c.api.Get(), &metav1.GetOptions{}).Name(name))
}

// List returns the objects matching the label selector.
func (c *client[T, L]) List(ctx context.Context, selector string) (*L, error) {
	return do[L](ctx, c.to(c.api.Get(), &metav1.ListOptions{LabelSelector: selector}))
}

func (c *client[T, L]) Create(ctx context.Context, object *T) (*T, error) {
	return do[T](ctx, c.to(c.api.Post(), &metav1.CreateOptions{}).Body(object))
}

// Try validates an object like Create, but does not create it.
func (c *client[T, L]) Try(ctx context.Context, object *T) (*T, error) {
	return do[T](ctx, c.to(c.api.Post(), &metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}).Body(object))
}

func (c *client[T, L]) Update(ctx context.Context, name string, object *T) (*T, error) {
	return do[T](ctx, c.to(c.api.Put(), &metav1.UpdateOptions{}).Name(name).Body(object))
}

func (c *client[T, L]) Patch(ctx context.Context, name string, patch []byte) (*T, error) {
	return do[T](ctx, c.to(c.api.Patch(types.StrategicMergePatchType), &metav1.PatchOptions{}).Name(name).Body(patch))
}

func (c *client[T, L]) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return c.to(c.api.Delete(), &metav1.GetOptions{}).Name(name).Body(&o).Do(ctx).Error()
}
