//go:build !no_docker

package main

import (
	dockerclient "github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/e2e/images"
)

func connectDocker(options) (images.Engine, func() error, error) {
	c, err := dockerclient.NewClientWithOpts(dockerclient.FromEnv, dockerclient.WithAPIVersionNegotiation())
	if err != nil {
		return nil, nil, err
	}
	return images.Docker(c), c.Close, nil
}
