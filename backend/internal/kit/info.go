package kit

import (
	"cmp"
	"slices"

	"github.com/workcell-dev/workcell/backend"
)

// Sort sorts sandboxes by the time of their creation.
func Sort(infos []backend.Info) {
	slices.SortFunc(infos, func(a, b backend.Info) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
}
