package mcpserver

import (
	"context"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/workcell-dev/workcell/internal/httpguard"
)

// Token is a client's bearer token. Tokens with the same name belong to the same owner.
type Token struct {
	Name   string // letters, digits, '.', '_' and '-'; logged
	Secret string // at least 16 bytes
	// Expires is the expiry time. If zero, the token never expires.
	Expires time.Time
}

// verifier returns a function to find the owner of a token.
func verifier(tokens []Token) (auth.TokenVerifier, error) {
	list := make([]httpguard.Token, len(tokens))
	for i, t := range tokens {
		list[i] = httpguard.Token(t)
	}
	known, err := httpguard.NewTokens(list)
	if err != nil {
		return nil, err
	}
	return func(_ context.Context, secret string, _ *http.Request) (*auth.TokenInfo, error) {
		t, ok := known.Find(secret)
		if !ok {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: t.Name, Expiration: t.Expires}, nil
	}, nil
}
