package sanitize

import (
	"bytes"
	"io"
)

// Secrets replaces secrets in text that passes: each byte of each occurrence, also where two overlap, and whichever of
// two that begin alike is meant. The zero value replaces nothing.
type Secrets struct {
	words [][]byte
	begin [256]bool // bytes that a word begins with
	with  []byte
}

// NewSecrets returns what replaces the words that are not empty.
func NewSecrets(with string, words ...string) Secrets {
	s := Secrets{with: []byte(with)}
	for _, w := range words {
		if w != "" {
			s.words, s.begin[w[0]] = append(s.words, []byte(w)), true
		}
	}
	return s
}

// Replace returns text without the secrets.
func (s Secrets) Replace(text string) string {
	p := passing{s: s}
	return string(p.push([]byte(text), true))
}

// Reader returns what reads from r without the secrets. It holds back only bytes that may begin one.
func (s Secrets) Reader(r io.ReadCloser) io.ReadCloser {
	return &secretsReader{ReadCloser: r, p: passing{s: s}}
}

// passing is text of which a part is still to come.
type passing struct {
	s      Secrets
	rest   []byte // may begin a secret
	hidden int    // bytes at the beginning of rest that are part of one
	in     bool   // the last byte that passed was part of one
}

// push takes the next part and returns what can pass.
func (p *passing) push(part []byte, last bool) []byte {
	p.rest = append(p.rest, part...)
	until := len(p.rest)
	if !last {
		until = p.mayBegin()
	}
	var out []byte
	for i := range until {
		if p.s.begin[p.rest[i]] {
			for _, w := range p.s.words {
				if bytes.HasPrefix(p.rest[i:], w) {
					p.hidden = max(p.hidden, i+len(w))
				}
			}
		}
		switch {
		case i >= p.hidden:
			out, p.in = append(out, p.rest[i]), false
		case !p.in:
			out, p.in = append(out, p.s.with...), true
		}
	}
	p.rest, p.hidden = p.rest[until:], max(p.hidden-until, 0)
	return out
}

// mayBegin returns where the first secret may begin of which a part is still to come.
func (p *passing) mayBegin() int {
	first := len(p.rest)
	for _, w := range p.s.words {
		for i := max(len(p.rest)-len(w)+1, 0); i < first; i++ {
			if bytes.HasPrefix(w, p.rest[i:]) {
				first = i
			}
		}
	}
	return first
}

type secretsReader struct {
	io.ReadCloser
	p     passing
	ready []byte
	err   error
}

func (r *secretsReader) Read(b []byte) (int, error) {
	for len(r.ready) == 0 && r.err == nil {
		n, err := r.ReadCloser.Read(b)
		r.err = err
		r.ready = r.p.push(b[:n], err != nil)
	}
	n := copy(b, r.ready)
	if r.ready = r.ready[n:]; n > 0 {
		return n, nil
	}
	return 0, r.err
}
