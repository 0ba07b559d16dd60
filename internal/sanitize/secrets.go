package sanitize

import (
	"bytes"
	"errors"
	"io"
	"strings"
)

// Secrets replaces secrets in text or in a stream. It replaces each byte of each occurrence, even if occurrences
// overlap or several secrets start with the same bytes. The zero value replaces nothing.
type Secrets struct {
	words   [][]byte
	begin   [256]bool // first bytes of words
	longest int       // bytes of the longest word
	lines   bool      // a word contains a line feed
	with    []byte
}

// NewSecrets returns a Secrets that replaces words by with. It ignores empty words.
func NewSecrets(with string, words ...string) Secrets {
	s := Secrets{with: []byte(with)}
	for _, w := range words {
		if w != "" {
			s.words, s.begin[w[0]] = append(s.words, []byte(w)), true
			s.longest, s.lines = max(s.longest, len(w)), s.lines || strings.Contains(w, "\n")
		}
	}
	return s
}

// Replace returns text with the secrets replaced.
func (s Secrets) Replace(text string) string {
	p := passing{s: s}
	return string(p.push([]byte(text), true))
}

// Reader returns a reader that reads from r and replaces the secrets. It holds back the end of the last line, as long
// as a secret, whether or not it looks like one. Otherwise, the sizes of the parts would tell a secret byte by byte to a
// program that chooses the text. If r fails, this end is lost, because it can be a part of a secret.
func (s Secrets) Reader(r io.ReadCloser) io.ReadCloser {
	return &secretsReader{ReadCloser: r, p: passing{s: s}}
}

// passing is the state of a text of which more parts can follow.
type passing struct {
	s      Secrets
	rest   []byte // may be the start of a secret
	hidden int    // number of a secret's bytes at the start of rest
	in     bool   // whether the last byte belonged to a secret
}

// push adds the next part and returns the complete text.
func (p *passing) push(part []byte, last bool) []byte {
	p.rest = append(p.rest, part...)
	until := len(p.rest)
	if !last {
		until = p.held()
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

// held returns the first position at which an incomplete secret could start.
func (p *passing) held() int {
	first := min(max(len(p.rest)-p.s.longest+1, 0), len(p.rest))
	if p.s.lines {
		return first
	}
	return max(first, bytes.LastIndexByte(p.rest, '\n')+1)
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
		r.ready = r.p.push(b[:n], errors.Is(err, io.EOF))
	}
	n := copy(b, r.ready)
	if r.ready = r.ready[n:]; n > 0 {
		return n, nil
	}
	return 0, r.err
}
