package mcpserver

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Token is a client's bearer token. Tokens with the same name belong to the same owner.
type Token struct {
	Name   string // letters, digits, '.', '_' and '-'; logged
	Secret string // at least 16 bytes
	// Expires is the expiry time. If zero, the token never expires.
	Expires time.Time
}

const minSecretBytes = 16

// verifier returns a function that finds the owner of a token. It compares digests, so that the lookup time reveals
// nothing about similar tokens.
func verifier(tokens []Token) (auth.TokenVerifier, error) {
	known := make(map[[sha256.Size]byte]auth.TokenInfo, len(tokens))
	for i, t := range tokens {
		digest := sha256.Sum256([]byte(t.Secret))
		other, taken := known[digest]
		switch {
		case !validSessionID(t.Name) || t.Name == localOwner:
			return nil, fmt.Errorf("token %d: invalid owner name %q", i+1, sanitize.Clip(t.Name))
		case len(t.Secret) < minSecretBytes:
			return nil, fmt.Errorf("token %d (%s): a token must have at least %d characters", i+1, t.Name, minSecretBytes)
		case taken:
			return nil, fmt.Errorf("token %d (%s): already used by %s; use a different token for each owner", i+1, t.Name, other.UserID)
		}
		known[digest] = auth.TokenInfo{UserID: t.Name, Expiration: t.Expires}
	}
	return func(_ context.Context, secret string, _ *http.Request) (*auth.TokenInfo, error) {
		info, ok := known[sha256.Sum256([]byte(secret))]
		if !ok {
			return nil, auth.ErrInvalidToken
		}
		return &info, nil
	}, nil
}
