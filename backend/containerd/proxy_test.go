//go:build linux

package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// engineProxy is a proxy between a driver and containerd, with the names of the calls.
type engineProxy struct {
	address string
	to      *grpc.ClientConn
	server  *grpc.Server
	hook    atomic.Pointer[hook]
}

// hook is called twice for every call: before the proxy forwards the call, and after the response. If it returns an
// error, this error is the response.
type hook func(ctx context.Context, method string, answered bool) error

func (p *engineProxy) on(f hook) { p.hook.Store(&f) }

// raw is a codec without decoding.
type raw struct{}

func (raw) Name() string                  { return "proto" }
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func newProxy(t testing.TB) *engineProxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctrd") // t.TempDir may be too long for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	to, err := grpc.NewClient("unix://"+engineAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	p := &engineProxy{address: filepath.Join(dir, "c.sock"), to: to}
	p.start(t)
	t.Cleanup(func() {
		p.server.Stop()
		_ = to.Close()
	})
	return p
}

// start starts listening. It can be called again after stop.
func (p *engineProxy) start(t testing.TB) {
	t.Helper()
	l, err := net.Listen("unix", p.address)
	must(t, err)
	p.server = grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(p.pass))
	go func(s *grpc.Server) { _ = s.Serve(l) }(p.server)
}

func (p *engineProxy) call(ctx context.Context, method string, answered bool) error {
	if f := p.hook.Load(); f != nil {
		return (*f)(ctx, method, answered)
	}
	return nil
}

// pass forwards one call.
func (p *engineProxy) pass(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	if err := p.call(in.Context(), method, false); err != nil {
		return err
	}
	md, _ := metadata.FromIncomingContext(in.Context())
	ctx := metadata.NewOutgoingContext(in.Context(), md)
	out, err := p.to.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodec(raw{}))
	if err != nil {
		return err
	}
	go func() { // ends with the call
		for {
			var m []byte
			if err := in.RecvMsg(&m); err != nil {
				if errors.Is(err, io.EOF) {
					_ = out.CloseSend()
				}
				return
			}
			if out.SendMsg(&m) != nil {
				return
			}
		}
	}()
	for {
		var m []byte
		err := out.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := p.call(in.Context(), method, true); err != nil {
			return err
		}
		if err := in.SendMsg(&m); err != nil {
			return err
		}
	}
}

// silence makes calls with this name wait until their context ends. An empty name matches all calls.
func silence(name string) hook {
	return func(ctx context.Context, method string, answered bool) error {
		if answered || !strings.HasSuffix(method, name) {
			return nil
		}
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
}

// refuse makes calls with this name return an error.
func refuse(name string, late bool) hook {
	return func(_ context.Context, method string, answered bool) error {
		if strings.HasSuffix(method, name) && answered == late {
			return status.Error(codes.Unavailable, fmt.Sprintf("%s is refused by the test", name))
		}
		return nil
	}
}
