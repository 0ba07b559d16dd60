// Package model lets code inside a sandbox without a network ask models, without having a key for them.
//
// A [Proxy] knows model providers and holds their keys. [Proxy.Issue] makes a [Lease]: a key of its own that is worth
// something in one sandbox, for one provider, some models and a budget, until it is closed. [Proxy.Attach] serves a session;
// inside, the base URL of a provider is http://127.0.0.1:PORT/PROVIDER.
//
// Only requests that ask a model, count tokens or list models pass. Their bodies are read: other models than those of the lease
// are refused, tools that the provider would run are removed, and content that the provider would fetch from a URL is refused.
// Tokens are counted in the answers, streamed or not, while these pass.
//
// Each request that asks a model is a span "chat MODEL" below that of the lease. It has no contents.
package model
