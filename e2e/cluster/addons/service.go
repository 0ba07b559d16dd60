package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/netip"
)

// serve replaces kube-proxy for the cluster's only built-in service, the API server. It forwards connections of pods
// from the service's address, which belongs to the node, to the server on the node's loopback interface. It rejects all
// other connections.
func serve(ctx context.Context, service, server string, pods netip.Prefix) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", service)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				if ctx.Err() == nil {
					log.Fatalf("the service of the API server: %v", err)
				}
				return
			}
			go lead(ctx, c, server, pods)
		}
	}()
	return nil
}

// lead connects a pod to the server.
func lead(ctx context.Context, pod net.Conn, server string, pods netip.Prefix) {
	defer pod.Close()
	if from, err := netip.ParseAddrPort(pod.RemoteAddr().String()); err != nil || !pods.Contains(from.Addr()) {
		return
	}
	s, err := new(net.Dialer).DialContext(ctx, "tcp", server)
	if err != nil {
		log.Printf("the API server, for %s: %v", pod.RemoteAddr(), err)
		return
	}
	defer s.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{pod, s}, {s, pod}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // ends when either side closes
			ended <- struct{}{}
		}()
	}
	<-ended
}
