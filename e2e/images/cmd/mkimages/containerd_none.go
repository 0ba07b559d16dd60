//go:build no_containerd

package main

var connectContainerd connector
