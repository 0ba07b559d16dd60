package backend

import "context"

// ImageChecker is implemented by drivers whose engine can be asked whether it has an image. HasImage fetches nothing;
// a malformed reference is ErrInvalid.
type ImageChecker interface {
	HasImage(ctx context.Context, ref string) (bool, error)
}
