// Package egress is the network's door: the one way out of a sandbox without a network. Code inside connects to a proxy on its own
// loopback, by HTTP or SOCKS5; the host resolves the name, holds it and its addresses to rules, and connects. TLS passes as it is,
// once its ClientHello was seen to name the same host.
//
// Spans: egress.Connect, for each connection that was asked for.
package egress
