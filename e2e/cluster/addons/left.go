package main

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// left prints the objects not present in every cluster, one per line. After all tests have ended, these are leftovers
// of tests.
func left(ctx context.Context, api kubernetes.Interface) error {
	all := metav1.ListOptions{}
	print := func(kind string, m metav1.ObjectMeta) {
		fmt.Println(kind, strings.TrimPrefix(m.Namespace+"/"+m.Name, "/"))
	}
	namespaces, err := api.CoreV1().Namespaces().List(ctx, all)
	if err != nil {
		return err
	}
	for _, n := range namespaces.Items {
		if n.Name != metav1.NamespaceDefault && !strings.HasPrefix(n.Name, "kube-") {
			print("namespace", n.ObjectMeta)
		}
	}
	pods, err := api.CoreV1().Pods("").List(ctx, all)
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		print("pod", p.ObjectMeta)
	}
	claims, err := api.CoreV1().PersistentVolumeClaims("").List(ctx, all)
	if err != nil {
		return err
	}
	for _, c := range claims.Items {
		print("claim", c.ObjectMeta)
	}
	volumes, err := api.CoreV1().PersistentVolumes().List(ctx, all)
	if err != nil {
		return err
	}
	for _, v := range volumes.Items {
		print("volume", v.ObjectMeta)
	}
	policies, err := api.NetworkingV1().NetworkPolicies("").List(ctx, all)
	if err != nil {
		return err
	}
	for _, p := range policies.Items {
		print("policy", p.ObjectMeta)
	}
	classes, err := api.SchedulingV1().PriorityClasses().List(ctx, all)
	if err != nil {
		return err
	}
	for _, c := range classes.Items {
		if !strings.HasPrefix(c.Name, "system-") {
			print("priority class", c.ObjectMeta)
		}
	}
	return nil
}
