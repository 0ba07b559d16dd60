package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// left prints the objects not present in every cluster, one per line. After all tests have ended, these are leftovers
// of tests.
func left(ctx context.Context, api kubernetes.Interface) error {
	all := metav1.ListOptions{}
	namespaces, e1 := api.CoreV1().Namespaces().List(ctx, all)
	pods, e2 := api.CoreV1().Pods("").List(ctx, all)
	claims, e3 := api.CoreV1().PersistentVolumeClaims("").List(ctx, all)
	volumes, e4 := api.CoreV1().PersistentVolumes().List(ctx, all)
	policies, e5 := api.NetworkingV1().NetworkPolicies("").List(ctx, all)
	classes, e6 := api.SchedulingV1().PriorityClasses().List(ctx, all)
	if err := errors.Join(e1, e2, e3, e4, e5, e6); err != nil {
		return err
	}
	print := func(kind string, m metav1.ObjectMeta) {
		fmt.Println(kind, strings.TrimPrefix(m.Namespace+"/"+m.Name, "/"))
	}
	for _, n := range namespaces.Items {
		if n.Name != metav1.NamespaceDefault && !strings.HasPrefix(n.Name, "kube-") {
			print("namespace", n.ObjectMeta)
		}
	}
	for _, p := range pods.Items {
		print("pod", p.ObjectMeta)
	}
	for _, c := range claims.Items {
		print("claim", c.ObjectMeta)
	}
	for _, v := range volumes.Items {
		print("volume", v.ObjectMeta)
	}
	for _, p := range policies.Items {
		print("policy", p.ObjectMeta)
	}
	for _, c := range classes.Items {
		if !strings.HasPrefix(c.Name, "system-") {
			print("priority class", c.ObjectMeta)
		}
	}
	return nil
}
