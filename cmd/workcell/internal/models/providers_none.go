//go:build no_models

package models

import (
	"github.com/firebase/genkit/go/core/api"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
)

// genkitPlugins returns nil, because this build contains no clients of model providers.
func genkitPlugins(environ.Lookup) map[string]api.Plugin { return nil }
