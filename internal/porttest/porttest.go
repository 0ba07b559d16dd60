// Package porttest finds free ports for test programs unable to choose a port themselves.
package porttest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// No system assigns ports in this range automatically, so no other program gets one of them before the test program
// listens.
const first, count = 20_000, 10_000

// Loopback returns n ports of 127.0.0.1 on which nothing listens.
func Loopback(n int) ([]string, error) {
	var ports []string
	for range count {
		port := strconv.Itoa(first + rand.IntN(count))
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			continue
		}
		defer l.Close() //nolint:errcheck // held until all are found, so that none comes twice
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("porttest: fewer than %d of the ports from %d are free", n, first)
}
