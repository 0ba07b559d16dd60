package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// defaultDetachKeys are Docker's.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// parseDetachKeys reads keys as Docker writes them. No keys at all are the default ones, as they are there.
func parseDetachKeys(text string) ([]byte, error) {
	if text == "" {
		text = defaultDetachKeys
	}
	var keys []byte
	for _, name := range strings.Split(text, ",") {
		ctrl, isCtrl := strings.CutPrefix(name, "ctrl-")
		switch {
		case len(name) == 1:
			keys = append(keys, name[0])
		case name == "DEL":
			keys = append(keys, 0x7f)
		case isCtrl && len(ctrl) == 1 && strings.Contains(`@abcdefghijklmnopqrstuvwxyz[\]^_`, ctrl):
			keys = append(keys, ctrl[0]&0x1f)
		default:
			return nil, fmt.Errorf("invalid detach keys (%s): unknown character: '%s'", text, name)
		}
	}
	return keys, nil
}

// detachReader is what is typed, up to the detach keys, which end it. Their beginning is held back until it is clear that
// the rest does not follow.
type detachReader struct {
	r    io.Reader
	keys []byte
	held []byte // a beginning of keys
	out  []byte // to be passed on
	err  error  // what comes behind out
}

func newDetachReader(r io.Reader, keys []byte) *detachReader {
	return &detachReader{r: r, keys: keys}
}

// Read returns what was typed; io.EOF after the detach keys.
func (d *detachReader) Read(p []byte) (int, error) {
	for len(d.out) == 0 && d.err == nil {
		var buf [4096]byte
		n, err := d.r.Read(buf[:])
		d.take(buf[:n])
		if d.err == nil && err != nil {
			d.out, d.held, d.err = append(d.out, d.held...), nil, err
		}
	}
	if len(d.out) == 0 {
		return 0, d.err
	}
	n := copy(p, d.out)
	d.out = d.out[n:]
	return n, nil
}

func (d *detachReader) take(typed []byte) {
	for _, c := range typed {
		d.held = append(d.held, c)
		for !bytes.HasPrefix(d.keys, d.held) {
			d.out = append(d.out, d.held[0])
			d.held = d.held[1:]
		}
		if len(d.held) == len(d.keys) {
			d.err = io.EOF
			return
		}
	}
}
