//go:build linux && no_kubernetes

package promises

import "github.com/workcell-dev/workcell/e2e/enginetest"

func openKubernetes() (engine, error) { return nil, enginetest.ErrNoCluster }
