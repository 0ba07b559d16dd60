package docker

import (
	"fmt"
	"net/http"
	"time"

	"github.com/docker/docker/client"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/workcell-dev/workcell/backend"
)

// attachTimeout bounds the opening of a stream. An engine does not respond if an earlier client stopped reading.
const attachTimeout = 10 * time.Second

func newClient(o Options) (*client.Client, error) {
	opts := []client.Opt{
		client.WithAPIVersionNegotiation(),
		// Workcell creates spans itself. The client's spans would contain raw IDs and image names in their paths.
		client.WithTraceProvider(noop.NewTracerProvider()),
		client.WithUserAgent("workcell"),
	}
	if o.TLS != nil {
		tr := &http.Transport{TLSClientConfig: o.TLS.Clone(), MaxIdleConns: 6, IdleConnTimeout: 30 * time.Second}
		opts = append(opts, client.WithHTTPClient(&http.Client{Transport: tr, CheckRedirect: client.CheckRedirect}))
	}
	if o.Host != "" {
		opts = append(opts, client.WithHost(o.Host))
	}
	api, err := client.NewClientWithOpts(opts...)
	if err != nil { // the text contains the address, which may be a path
		return nil, fmt.Errorf("docker: Options.Host is not an engine address: %w", backend.ErrInvalid)
	}
	return api, nil
}
