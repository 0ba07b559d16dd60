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

// engineProxy stands between a driver and containerd, and knows the calls by name.
type engineProxy struct {
	address string
	to      *grpc.ClientConn
	server  *grpc.Server
	hook    atomic.Pointer[hook]
}

// hook sees every call: before it is passed on, and once it is answered. An error is the answer instead.
type hook func(ctx context.Context, method string, answered bool) error

func (p *engineProxy) on(f hook) { p.hook.Store(&f) }

// raw passes messages as they are.
type raw struct{}

func (raw) Name() string                  { return "proto" }
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func newProxy(t testing.TB) *engineProxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctrd") // a test's own directory may be too long for a socket
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

// start listens; after stop it does so again.
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

// pass passes one call on.
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

// silence has calls wait for their end; one of the given name only, or all.
func silence(name string) hook {
	return func(ctx context.Context, method string, answered bool) error {
		if answered || !strings.HasSuffix(method, name) {
			return nil
		}
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
}

// refuse answers one call with an error.
func refuse(name string, late bool) hook {
	return func(_ context.Context, method string, answered bool) error {
		if strings.HasSuffix(method, name) && answered == late {
			return status.Error(codes.Unavailable, fmt.Sprintf("%s is refused by the test", name))
		}
		return nil
	}
}
