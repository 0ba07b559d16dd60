package mcpserver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
)

// Token is a client's bearer token. Clients with the same name are one owner.
type Token struct {
	Name   string // letters, digits, '.', '_' and '-'; shows in logs
	Secret string // at least 16 bytes
	// Expires ends the token. Zero is never.
	Expires time.Time
}

const minSecretBytes = 16

// keyring checks tokens. Comparing digests takes the same time wherever a guess goes wrong.
type keyring struct {
	tokens []heldToken
}

type heldToken struct {
	name    string
	digest  [sha256.Size]byte
	expires time.Time
}

// newKeyring returns nil without tokens.
func newKeyring(tokens []Token) (*keyring, error) {
	if len(tokens) == 0 {
		return nil, nil
	}
	k := &keyring{}
	first := map[[sha256.Size]byte]int{}
	for i, t := range tokens {
		digest := sha256.Sum256([]byte(t.Secret))
		earlier, twice := first[digest]
		switch {
		case !validSessionID(t.Name) || t.Name == localOwner:
			return nil, fmt.Errorf("token %d: %q cannot be the name of an owner", i+1, clip(t.Name))
		case len(t.Secret) < minSecretBytes:
			return nil, fmt.Errorf("token %d (%s): a token needs at least %d characters", i+1, t.Name, minSecretBytes)
		case twice:
			return nil, fmt.Errorf("token %d (%s): it is the same as token %d (%s), owners need tokens of their own", i+1, t.Name, earlier+1, tokens[earlier].Name)
		}
		first[digest] = i
		k.tokens = append(k.tokens, heldToken{t.Name, digest, t.Expires})
	}
	return k, nil
}

// require lets requests with a token through, with its owner in their context.
func (k *keyring) require(next http.Handler) http.Handler {
	return auth.RequireBearerToken(func(_ context.Context, secret string, _ *http.Request) (*auth.TokenInfo, error) {
		digest := sha256.Sum256([]byte(secret))
		found := -1
		for i, t := range k.tokens {
			if subtle.ConstantTimeCompare(digest[:], t.digest[:]) == 1 {
				found = i
			}
		}
		if found < 0 {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: k.tokens[found].name, Expiration: k.tokens[found].expires}, nil
	}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
}
