package wire

import (
	"encoding/base64"
	"slices"
	"unicode/utf8"
)

// rawText is implemented by messages with strings that may hold any bytes. JSON carries UTF-8 only, so a string that
// is something else travels as bytes in a field of its own.
type rawText interface{ rawFields() []rawField }

// rawField is a string, or a list of them, and the field that stands in for it.
type rawField interface {
	pack()   // fill the raw field when it is needed
	unpack() // put a filled raw field back and empty it
}

type rawString struct {
	text *string
	raw  *[]byte
}

func (f rawString) pack() {
	if !utf8.ValidString(*f.text) {
		*f.raw = []byte(*f.text)
	}
}

func (f rawString) unpack() {
	if *f.raw != nil {
		*f.text, *f.raw = string(*f.raw), nil
	}
}

type rawStrings struct {
	list *[]string
	raw  *[][]byte
}

func (f rawStrings) pack() {
	if slices.IndexFunc(*f.list, func(s string) bool { return !utf8.ValidString(s) }) < 0 {
		return
	}
	for _, s := range *f.list {
		*f.raw = append(*f.raw, []byte(s))
	}
}

func (f rawStrings) unpack() {
	if *f.raw == nil {
		return
	}
	*f.list = nil
	for _, b := range *f.raw {
		*f.list = append(*f.list, string(b))
	}
	*f.raw = nil
}

func (s *Spawn) rawFields() []rawField {
	return []rawField{rawStrings{&s.Argv, &s.ArgvRaw}, rawStrings{&s.Env, &s.EnvRaw}, rawString{&s.Dir, &s.DirRaw}}
}

func (r *FileGetRequest) rawFields() []rawField { return []rawField{rawString{&r.Path, &r.PathRaw}} }
func (r *FilePutRequest) rawFields() []rawField { return []rawField{rawString{&r.Path, &r.PathRaw}} }
func (r *PathRequest) rawFields() []rawField    { return []rawField{rawString{&r.Path, &r.PathRaw}} }
func (r *ListRequest) rawFields() []rawField    { return []rawField{rawString{&r.Path, &r.PathRaw}} }
func (r *RenameRequest) rawFields() []rawField {
	return []rawField{rawString{&r.From, &r.FromRaw}, rawString{&r.To, &r.ToRaw}}
}

// EncodedPathSize bounds what a path takes in a message: JSON writes control characters and some others in six bytes,
// and a path that is not UTF-8 travels a second time in base64.
func EncodedPathSize(s string) int {
	size := len(s)
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' || c >= utf8.RuneSelf {
			size += 5
		}
	}
	if !utf8.ValidString(s) {
		size += base64.StdEncoding.EncodedLen(len(s))
	}
	return size
}
