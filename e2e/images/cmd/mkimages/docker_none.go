//go:build no_docker

package main

var connectDocker connector
