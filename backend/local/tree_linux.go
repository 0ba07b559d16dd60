package local

import (
	"context"
	"os"
)

func removeTree(ctx context.Context, dir string) error { return os.RemoveAll(dir) }
