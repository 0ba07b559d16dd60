// Package deps keeps the module graph settled.
package deps

import (
	_ "github.com/containerd/cgroups/v3"
	_ "github.com/containerd/containerd/v2/client"
	_ "github.com/containerd/containerd/v2/pkg/oci"
	_ "github.com/containerd/go-cni"
	_ "github.com/containerd/typeurl/v2"
	_ "github.com/modelcontextprotocol/go-sdk/mcp"
	_ "github.com/opencontainers/runtime-spec/specs-go"
	_ "golang.org/x/net/bpf"
	_ "mvdan.cc/sh/v3/syntax"
)
