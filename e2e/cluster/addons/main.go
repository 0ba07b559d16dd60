// Command addons provides the components of a cluster outside of Kubernetes itself, for the single node of the tests.
// It enforces NetworkPolicies with iptables, like a network plugin. It connects pods to the API server. It provisions
// volumes, which are directories on the node.
//
//	addons --kubeconfig FILE --node NAME --pods CIDR --service ADDRESS --server ADDRESS --storage-class NAME --volumes DIRECTORY
//	addons --kubeconfig FILE --left    lists what tests left in it
package main

import (
	"context"
	"flag"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networklisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// again is the interval of complete checks, independent of events from the server.
const again = 5 * time.Second

func main() {
	var a addons
	kubeconfig := flag.String("kubeconfig", "", "the cluster")
	flag.StringVar(&a.node, "node", "127.0.0.1", "name of the node")
	flag.StringVar(&a.network, "pods", "", "addresses of pods, as 10.0.0.0/24")
	service := flag.String("service", "", "address and port of the service of the API server, which the node has")
	server := flag.String("server", "", "where the API server listens on the node")
	list := flag.Bool("left", false, "list what is in the cluster, and end")
	flag.StringVar(&a.class, "storage-class", "", "volumes to provide")
	flag.StringVar(&a.volumes, "volumes", "", "directory of these volumes")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err == nil {
		config.QPS, config.Burst = 200, 400
		a.api, err = kubernetes.NewForConfig(config)
	}
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *list {
		err = left(ctx, a.api)
	} else if err = a.way(ctx, *service, *server); err == nil {
		a.run(ctx)
	}
	if err != nil {
		log.Fatal(err) //nolint:gocritic // nothing is left to stop
	}
}

// way makes the API server reachable from pods.
func (a *addons) way(ctx context.Context, service, server string) error {
	pods, err := netip.ParsePrefix(a.network)
	if err != nil {
		return err
	}
	return serve(ctx, service, server, pods)
}

type addons struct {
	api                           kubernetes.Interface
	node, network, class, volumes string

	pods       corelisters.PodLister
	namespaces corelisters.NamespaceLister
	claims     corelisters.PersistentVolumeClaimLister
	pvs        corelisters.PersistentVolumeLister
	policies   networklisters.NetworkPolicyLister
	rules      string // current rules
}

// run keeps the node in the state requested by the server until ctx is done.
func (a *addons) run(ctx context.Context) {
	f := informers.NewSharedInformerFactory(a.api, 0)
	core, network := f.Core().V1(), f.Networking().V1()
	a.pods, a.namespaces, a.claims, a.pvs = core.Pods().Lister(), core.Namespaces().Lister(), core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister()
	a.policies = network.NetworkPolicies().Lister()
	changed := make(chan struct{}, 1)
	tell := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, i := range []cache.SharedIndexInformer{
		core.Pods().Informer(), core.Namespaces().Informer(), core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(),
		network.NetworkPolicies().Informer(),
	} {
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: tell, UpdateFunc: func(_, now any) { tell(now) }, DeleteFunc: tell}); err != nil {
			log.Fatal(err)
		}
	}
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	for ctx.Err() == nil {
		if err := a.enforce(); err != nil {
			log.Printf("policies: %v", err)
		}
		if err := a.provide(ctx); err != nil {
			log.Printf("volumes: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(again):
		}
	}
}

// selected reports whether a selector selects labels. The zero value selects all.
func selected(s labels.Selector, err error, set map[string]string) bool {
	return err == nil && s.Matches(labels.Set(set))
}

// live reports whether a pod is running with its own address.
func live(p *corev1.Pod) bool {
	return p.Status.PodIP != "" && !p.Spec.HostNetwork && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded
}
