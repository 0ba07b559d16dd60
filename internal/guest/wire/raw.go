package wire

import (
	"encoding/base64"
	"unicode/utf8"
)

// rawText is implemented by messages with strings that may hold any bytes. JSON carries UTF-8 only, so a string that
// is something else travels as bytes in a field of its own.
type rawText interface {
	packRaw()   // fill the raw fields that are needed
	unpackRaw() // put filled raw fields back and empty them
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

func pack(s string, raw *[]byte) {
	if !utf8.ValidString(s) {
		*raw = []byte(s)
	}
}

func unpack(s *string, raw *[]byte) {
	if *raw != nil {
		*s, *raw = string(*raw), nil
	}
}

func packAll(list []string, raw *[][]byte) {
	for _, s := range list {
		if utf8.ValidString(s) {
			continue
		}
		*raw = make([][]byte, len(list))
		for i, s := range list {
			(*raw)[i] = []byte(s)
		}
		return
	}
}

func unpackAll(list *[]string, raw *[][]byte) {
	if *raw == nil {
		return
	}
	*list = make([]string, len(*raw))
	for i, b := range *raw {
		(*list)[i] = string(b)
	}
	*raw = nil
}

func (s *Spawn) packRaw() {
	packAll(s.Argv, &s.ArgvRaw)
	packAll(s.Env, &s.EnvRaw)
	pack(s.Dir, &s.DirRaw)
}

func (s *Spawn) unpackRaw() {
	unpackAll(&s.Argv, &s.ArgvRaw)
	unpackAll(&s.Env, &s.EnvRaw)
	unpack(&s.Dir, &s.DirRaw)
}

func (r *FileGetRequest) packRaw()   { pack(r.Path, &r.PathRaw) }
func (r *FileGetRequest) unpackRaw() { unpack(&r.Path, &r.PathRaw) }
func (r *FilePutRequest) packRaw()   { pack(r.Path, &r.PathRaw) }
func (r *FilePutRequest) unpackRaw() { unpack(&r.Path, &r.PathRaw) }
func (r *PathRequest) packRaw()      { pack(r.Path, &r.PathRaw) }
func (r *PathRequest) unpackRaw()    { unpack(&r.Path, &r.PathRaw) }
func (r *ListRequest) packRaw()      { pack(r.Path, &r.PathRaw) }
func (r *ListRequest) unpackRaw()    { unpack(&r.Path, &r.PathRaw) }

func (r *RenameRequest) packRaw() {
	pack(r.From, &r.FromRaw)
	pack(r.To, &r.ToRaw)
}

func (r *RenameRequest) unpackRaw() {
	unpack(&r.From, &r.FromRaw)
	unpack(&r.To, &r.ToRaw)
}
