//go:build no_models

package models

import "github.com/workcell-dev/workcell/internal/environ"

// providers returns none: this build is without the clients of model providers.
func providers(environ.Lookup) map[string]provider { return nil }
