//go:build !no_containerd

package main

import (
	"time"

	ctrd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/log"

	"github.com/workcell-dev/workcell/e2e/images"
)

func connectContainerd(o options) (images.Engine, func() error, error) {
	_ = log.SetLevel("error") // otherwise the client reports the attempts of a pull; "error" is a valid level
	c, err := ctrd.New(o.address, ctrd.WithDefaultNamespace(o.namespace), ctrd.WithTimeout(time.Minute))
	if err != nil {
		return nil, nil, err
	}
	return images.Containerd(c), c.Close, nil
}
