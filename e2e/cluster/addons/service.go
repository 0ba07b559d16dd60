package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/netip"
)

// serve is what kube-proxy would be to the one service that a cluster has by itself, that of its API server:
// connections of pods to the service's address, which the node has, go on to the server, which is on the node's
// loopback. Nobody but pods is let in.
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

// lead connects a pod and the server.
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
			_, _ = io.Copy(way[0], way[1]) // ends with either
			ended <- struct{}{}
		}()
	}
	<-ended
}
