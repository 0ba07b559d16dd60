package mcpserver

import (
	"context"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// methodInitialize begins a session.
const methodInitialize = "initialize"

type reservationKey struct{}

// bindSessions is middleware: it binds a new session to the reservation of the request that began it. Context values of
// that request are in every later one of the session.
func bindSessions(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if err != nil || method != methodInitialize {
			return res, err
		}
		r, _ := ctx.Value(reservationKey{}).(*reservation)
		if ss, ok := req.GetSession().(*mcp.ServerSession); ok && r != nil {
			r.bind(ss)
		}
		return res, nil
	}
}

// reserveSession reserves the place of the session that a message begins, if it does. It answers when it is refused.
// done must be called when the request has been answered.
func (h *httpHandler) reserveSession(w http.ResponseWriter, r *http.Request, client string, msg jsonrpc.Message) (_ *http.Request, done func(), ok bool) {
	call, isCall := msg.(*jsonrpc.Request)
	if !isCall || call.Method != methodInitialize || r.Header.Get(headerSession) != "" {
		return r, func() {}, true
	}
	place, status, refusal := h.limiter.reserve(client)
	if place == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, refusal, status)
		return r, nil, false
	}
	return r.WithContext(context.WithValue(r.Context(), reservationKey{}, place)), place.done, true
}
