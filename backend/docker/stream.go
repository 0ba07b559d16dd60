package docker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// hijack opens a stream through the engine. It does not use the client's method, which ignores the context after
// connecting and loses the status of the response. The output must begin with start.
func (b *driver) hijack(
	ctx context.Context, what, route string, query url.Values, body any, start []byte,
) (io.ReadWriteCloser, error) {
	bctx, cancel := b.calls.Bound(ctx, min(attachTimeout, b.opts.CallTimeout))
	defer cancel()
	req, err := b.hijackRequest(bctx, route, query, body)
	if err != nil {
		return nil, fmt.Errorf("docker: %s: %w", what, err)
	}
	resp, err := b.api.HTTPClient().Do(req)
	if err != nil {
		return nil, b.calls.Fail(ctx, what, err)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		return nil, errors.Join(b.calls.Fail(ctx, what, refusal(resp)), resp.Body.Close())
	}
	return newStream(conn, start), nil
}

func (b *driver) hijackRequest(ctx context.Context, route string, query url.Values, body any) (*http.Request, error) {
	engine, err := client.ParseHostURL(b.api.DaemonHost())
	if err != nil {
		return nil, err
	}
	var payload bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&payload).Encode(body); err != nil {
			return nil, err
		}
	}
	u := url.URL{Scheme: "http", Host: client.DummyHost, RawQuery: query.Encode()}
	u.Path = path.Join("/", engine.Path, "v"+b.api.ClientVersion(), route)
	if engine.Scheme != "unix" && engine.Scheme != "npipe" {
		u.Host = engine.Host
	}
	if b.opts.TLS != nil {
		u.Scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), &payload)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Connection": "Upgrade", "Upgrade": "tcp", "User-Agent": "workcell",
	} {
		req.Header.Set(name, value)
	}
	return req, nil
}

// refusal converts the engine's response to an error with the status's type.
func refusal(resp *http.Response) error {
	var m struct {
		Message string `json:"message"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&m); err != nil || m.Message == "" {
		m.Message = resp.Status
	}
	var kind error = cerrdefs.ErrUnknown
	switch resp.StatusCode {
	case http.StatusNotFound:
		kind = cerrdefs.ErrNotFound
	case http.StatusConflict:
		kind = cerrdefs.ErrConflict
	case http.StatusBadRequest:
		kind = cerrdefs.ErrInvalidArgument
	case http.StatusServiceUnavailable:
		kind = cerrdefs.ErrUnavailable
	}
	return fmt.Errorf("%s: %w", m.Message, kind)
}

// readBuffer is the size of the read buffer. It is larger than the engine's chunks, which have at most 32 KiB.
const readBuffer = 64 << 10

// newStream returns a duplex stream. The engine multiplexes the container's outputs in frames. Reads return the
// standard output. Reads and writes may run concurrently. Close ends both directions and pending calls.
func newStream(conn io.ReadWriteCloser, start []byte) io.ReadWriteCloser {
	r, w := io.Pipe()
	go func() { // ends with the connection
		_, err := stdcopy.StdCopy(&output{w, start}, io.Discard, bufio.NewReaderSize(newGatherer(conn), readBuffer))
		_ = w.CloseWithError(err) // always succeeds
	}()
	return host.NewStream(r, conn, func() error { return errors.Join(conn.Close(), r.Close()) })
}

// output checks the beginning of the output. If the engine cannot start a program, it writes the reason to the output.
type output struct {
	w     io.Writer
	start []byte // expected next bytes
}

func (o *output) Write(p []byte) (int, error) {
	n := min(len(p), len(o.start))
	if !bytes.Equal(p[:n], o.start[:n]) {
		text := strings.TrimSpace(sanitize.Text(string(p[:min(len(p), 400)])))
		err := fmt.Errorf("docker: the engine did not start the program: %s", text)
		if strings.Contains(text, "is not running") { // the engine may report a running state after the runtime was killed
			err = fmt.Errorf("%w: %w", err, backend.ErrLost)
		}
		return 0, err
	}
	o.start = o.start[n:]
	return o.w.Write(p)
}
