package sanitize

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"unicode"
)

// Secrets replaces secrets in text or in a stream. It replaces each byte of each occurrence, even if occurrences
// overlap or several secrets start with the same bytes. Characters other than letters and digits can be escaped for
// URLs, JSON, or HTML. The zero value replaces nothing.
type Secrets struct {
	words   map[byte][][]byte // by the first byte of an occurrence
	begin   [256]bool         // first bytes of occurrences
	longest int               // bytes of the longest occurrence
	lines   bool              // a word contains a line feed
	with    []byte
}

// NewSecrets returns a Secrets that replaces words by with. It ignores empty words.
func NewSecrets(with string, words ...string) Secrets {
	s := Secrets{words: map[byte][][]byte{}, with: []byte(with)}
	for _, w := range words {
		if w == "" {
			continue
		}
		for _, form := range spellings[w[0]] {
			if list := s.words[form[0]]; len(list) == 0 || string(list[len(list)-1]) != w {
				s.words[form[0]], s.begin[form[0]] = append(list, []byte(w)), true
			}
		}
		most := 0
		for _, c := range []byte(w) {
			most += len(spellings[c][0])
		}
		s.longest, s.lines = max(s.longest, most), s.lines || strings.Contains(w, "\n")
	}
	return s
}

// spellings are the forms of each byte in answers, the longest first. Only the characters that encoders change have
// more than one.
var spellings = func() (list [256][]string) {
	for i := range list {
		raw := string([]byte{byte(i)})
		list[i] = []string{raw}
		if i >= 0x20 && i < 0x7f && !unicode.IsLetter(rune(i)) && !unicode.IsDigit(rune(i)) {
			all := fmt.Sprintf(`%%%02[1]x %%%02[1]X \u%04[1]x \u%04[1]X &#%[1]d; &#%03[1]d; &#x%[1]x; &#x%[1]X; \%[1]c`, i)
			list[i] = append(list[i], append(strings.Fields(all), html.EscapeString(raw))...)
		}
		slices.SortStableFunc(list[i], func(a, b string) int { return len(b) - len(a) })
	}
	return list
}()

// occurrence returns the length of a word in any spelling at the start of text; zero for another text.
func occurrence(text, word []byte) (n int) {
	if bytes.HasPrefix(text, word) {
		return len(word)
	}
	for _, c := range word {
		i := slices.IndexFunc(spellings[c], func(form string) bool {
			return len(text)-n >= len(form) && string(text[n:n+len(form)]) == form
		})
		if i < 0 {
			return 0
		}
		n += len(spellings[c][i])
	}
	return n
}

// Replace returns text with the secrets replaced.
func (s Secrets) Replace(text string) string {
	p := passing{s: s}
	return string(p.push([]byte(text), true))
}

// Reader returns a reader that reads from r and replaces the secrets. It holds back the end of the last line, as long
// as a secret, whether or not it looks like one. Otherwise, a program that chooses the text could find a secret byte by
// byte from the sizes of the parts. If r fails, this end is lost, because it can be a part of a secret.
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
			for _, w := range p.s.words[p.rest[i]] {
				if n := occurrence(p.rest[i:], w); n > 0 {
					p.hidden = max(p.hidden, i+n)
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
