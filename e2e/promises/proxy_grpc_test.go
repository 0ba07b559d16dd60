package promises

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// newGRPCProxy puts a proxy before an engine that speaks gRPC on a socket. It changes nothing of what goes through, and
// reads along for the names of the methods.
func newGRPCProxy(t testing.TB, address string) *proxy {
	t.Helper()
	p := &proxy{address: filepath.Join(t.TempDir(), "e.sock"), conns: map[net.Conn]struct{}{}}
	l, err := net.Listen("unix", p.address)
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		from := &cuttable{Listener: l, p: p}
		for {
			client, err := from.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", address)
			if err != nil {
				_ = client.Close() // as if nobody listened
				continue
			}
			wg.Go(func() {
				_, _ = io.Copy(client, server) // ends with either
				_ = client.Close()
			})
			wg.Go(func() {
				_ = p.forward(server, client) // likewise
				_ = server.Close()
			})
		}
	})
	t.Cleanup(func() {
		p.setCut(true)
		_ = l.Close()
		wg.Wait()
	})
	return p
}

// forward copies what a client sends, frame by frame, and tells the hook of every request before it goes on.
func (p *proxy) forward(server io.Writer, client io.Reader) error {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(client, preface); err != nil {
		return err
	}
	if _, err := server.Write(preface); err != nil {
		return err
	}
	path := ""
	headers := hpack.NewDecoder(64<<10, func(f hpack.HeaderField) {
		if f.Name == ":path" {
			path = f.Value
		}
	})
	for {
		frame := make([]byte, 9)
		if _, err := io.ReadFull(client, frame); err != nil {
			return err
		}
		size := int(binary.BigEndian.Uint32(frame) >> 8)
		frame = append(frame, make([]byte, size)...)
		if _, err := io.ReadFull(client, frame[9:]); err != nil {
			return err
		}
		if http2.FrameType(frame[3]) == http2.FrameHeaders {
			path = ""
			if err := readHeaders(headers, http2.Flags(frame[4]), frame[9:]); err != nil {
				return err
			}
			if f := p.hook.Load(); f != nil {
				(*f)(&http.Request{Method: http.MethodPost, URL: &url.URL{Path: path}})
			}
		}
		if _, err := server.Write(frame); err != nil {
			return err
		}
	}
}

// readHeaders decodes a frame of headers, which gRPC's are short enough for.
func readHeaders(d *hpack.Decoder, flags http2.Flags, block []byte) error {
	if !flags.Has(http2.FlagHeadersEndHeaders) {
		return errors.New("headers of more than one frame")
	}
	padding := 0
	if flags.Has(http2.FlagHeadersPadded) {
		padding, block = int(block[0]), block[1:]
	}
	if flags.Has(http2.FlagHeadersPriority) {
		block = block[5:]
	}
	if _, err := d.Write(block[:len(block)-padding]); err != nil {
		return err
	}
	return d.Close()
}
