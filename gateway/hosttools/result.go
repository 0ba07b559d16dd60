package hosttools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/record"
)

// maxResult is the maximum size of a result, including all files.
const maxResult = 64 << 20

const (
	workspace  = "/workspace"
	resultsDir = workspace + "/.workcell/results"
)

// Files writes files for large results. *sandbox.Sandbox implements it.
type Files interface {
	WriteFile(ctx context.Context, name string, r io.Reader, opts sandbox.WriteFileOptions) (sandbox.FileInfo, error)
}

// Saved is a result in a file of the sandbox.
type Saved struct {
	Path  string `json:"path"`
	Bytes int    `json:"bytes"`
	// JSON type ("object", "array", "string", "number", "boolean", or "null"), "text", or a media type.
	Kind   string   `json:"kind"`
	Length int      `json:"length,omitempty"` // number of keys, items, or characters
	Keys   []string `json:"keys,omitempty"`   // first keys of an object
	Head   string   `json:"head,omitempty"`   // beginning of the file
}

// Limits of the description in a Saved.
const (
	maxSavedKeys = 20
	maxSavedHead = 400
)

// checkSave checks the caller's file name for a result.
func checkSave(name string) *Error {
	if name == "" || savePath(name) != "" {
		return nil
	}
	return toolspec.Failf(toolspec.CodeInvalid, "cannot save the result as %q", plain(name, 80)).
		WithRemediation("Use a file below /workspace.")
}

// savePath returns the path of a file below the workspace, or an empty string for an invalid path.
func savePath(name string) string {
	if len(name) > 1024 || strings.ContainsRune(name, 0) || !utf8.ValidString(name) || strings.HasSuffix(name, "/") {
		return ""
	}
	if !path.IsAbs(name) {
		name = workspace + "/" + name
	}
	if name = path.Clean(name); !strings.HasPrefix(name, workspace+"/") {
		return ""
	}
	return name
}

// deliver converts a result to a reply. Small results are part of the reply, and large results become files.
func (p *pass) deliver(ctx context.Context, res Result) Reply {
	body, text := []byte(res.Data), false
	if len(body) == 0 {
		body, text = []byte(res.Text), true
	}
	size := len(body)
	for _, f := range res.Files {
		size += len(f.Bytes)
	}
	name := p.entry.tool.FullName()
	switch {
	case size > maxResult:
		fail := toolspec.Failf(toolspec.CodeTooLarge, "the result of %s has %d bytes, the limit is %d", name, size, maxResult)
		return Reply{Error: fail.WithRemediation("Request less in one call.")}
	case !text && !json.Valid(body):
		return Reply{Error: toolspec.Failf(toolspec.CodeToolFailed, "%s returned invalid JSON", name)}
	case !text:
		if err := p.entry.fits(body); err != nil {
			fail := toolspec.Failf(toolspec.CodeToolFailed, "the result of %s does not fit its schema: %s", name, fault(err))
			return Reply{Error: fail.WithRemediation("Report this. The call may have had an effect.")}
		}
	}
	var reply Reply
	to := savePath(p.req.Save)
	if to != "" && len(body) == 0 && len(res.Files) == 1 { // the file is the result
		return p.savedReply(ctx, to, res.Files[0].Bytes, kindOf(res.Files[0]))
	}
	prefix := resultsDir + "/" + record.NewID()
	for i, f := range res.Files {
		file := fmt.Sprintf("%s-%d%s", prefix, i+1, extension(f))
		saved, fail := p.save(ctx, file, f.Bytes, Saved{Kind: kindOf(f)})
		if fail != nil {
			return Reply{Error: fail}
		}
		reply.Files = append(reply.Files, saved)
	}
	kind, ext := "", ".json"
	if text {
		kind, ext = "text", ".txt"
	}
	if large := int64(len(body)) > p.set.limits.ResultKB<<10; to == "" &&
		(large || !text && p.cmd.Files != nil && beginsAsSaved(body)) {
		to = prefix + ext
	}
	switch {
	case to != "":
		saved := p.savedReply(ctx, to, body, kind)
		saved.Files = reply.Files
		return saved
	case text && len(body) == 0 && len(reply.Files) == 1:
		return reply.Files[0].reply()
	case text:
		reply.Text = strings.ToValidUTF8(res.Text, "\uFFFD")
	default:
		reply.Data = res.Data
	}
	return reply
}

// maxChecked is the maximum size of a result for a check against the tool's schema, because the check requires many
// times the result's memory.
const maxChecked = 4 << 20

// fits checks a result, which is valid JSON, against the schema of the tool.
func (e *entry) fits(data []byte) error {
	if e.output == nil || len(data) > maxChecked {
		return nil
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	return e.output.Validate(v)
}

// savedKey is the only key of a reply for a saved result.
const savedKey = "$saved"

// beginsAsSaved reports whether a tool's own data could be mistaken for such a reply. deliver saves such data to a file
// to avoid this.
func beginsAsSaved(body []byte) bool {
	d := json.NewDecoder(bytes.NewReader(body))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return false
	}
	key, err := d.Token()
	return err == nil && key == savedKey
}

// savedReply saves a result and returns a reply with the path. If kind is empty, the kind is the JSON type.
func (p *pass) savedReply(ctx context.Context, name string, body []byte, kind string) Reply {
	about := Saved{Kind: kind}
	switch {
	case kind == "text":
		about.Length, about.Head = utf8.RuneCount(body), head(body)
	case kind == "":
		about = describe(body)
	}
	saved, fail := p.save(ctx, name, body, about)
	if fail != nil {
		return Reply{Error: fail}
	}
	return saved.reply()
}

// reply returns the reply for a result in a file.
func (s Saved) reply() Reply {
	data, _ := sanitize.JSON(map[string]any{savedKey: s}) // plain data, so the error is always nil
	return Reply{Data: data}
}

// save writes a file to the sandbox.
func (p *pass) save(ctx context.Context, name string, body []byte, about Saved) (Saved, *Error) {
	if p.cmd.Files == nil {
		if strings.Contains(about.Kind, "/") { // a reply cannot contain binary files of any size
			const message = "the result has a file (%s, %d bytes), which requires a sandbox"
			return Saved{}, toolspec.Failf(toolspec.CodeUnsupported, message, about.Kind, len(body)).
				WithRemediation("Call the tool from code in a sandbox.")
		}
		return Saved{}, toolspec.Failf(toolspec.CodeTooLarge, "the result has %d bytes and cannot be saved", len(body)).
			WithRemediation("Request less in one call.")
	}
	opts := sandbox.WriteFileOptions{Size: int64(len(body)), Overwrite: true}
	if _, err := p.cmd.Files.WriteFile(ctx, name, bytes.NewReader(body), opts); err != nil {
		fail := *toolspec.ErrorOf(err)
		fail.Message = "cannot save the result: " + fail.Message
		return Saved{}, &fail
	}
	p.noteSaved(name)
	about.Path, about.Bytes = name, len(body)
	return about, nil
}

// describe returns the type and the members of a valid JSON text. It decodes one member at a time.
func describe(body []byte) Saved {
	s := Saved{Head: head(body)}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	first, _ := d.Token() // body is valid JSON
	switch first := first.(type) {
	case json.Delim:
		s.Kind = map[json.Delim]string{'{': "object", '[': "array"}[first]
		for member := json.RawMessage(nil); d.More(); s.Length++ {
			if first == '{' {
				key, _ := d.Token()
				if name, ok := key.(string); ok && len(s.Keys) < maxSavedKeys {
					s.Keys = append(s.Keys, plain(name, 80))
				}
			}
			if d.Decode(&member) != nil {
				return s
			}
		}
	case string:
		s.Kind, s.Length = "string", utf8.RuneCountInString(first)
	case bool:
		s.Kind = "boolean"
	case nil:
		s.Kind = "null"
	default:
		s.Kind = "number"
	}
	return s
}

func head(body []byte) string {
	return strings.ToValidUTF8(string(body[:min(len(body), maxSavedHead)]), "")
}

func kindOf(f File) string {
	if t, _, err := mime.ParseMediaType(f.MIME); err == nil {
		return t
	}
	return "application/octet-stream"
}

var plainExtension = regexp.MustCompile(`\A\.[A-Za-z0-9]{1,9}\z`)

// extension returns the extension of a file's name, or the default extension of the type.
func extension(f File) string {
	if ext := path.Ext(path.Base(f.Name)); plainExtension.MatchString(ext) {
		return ext
	}
	return cmp.Or(map[string]string{
		"image/png": ".png", "image/jpeg": ".jpg", "audio/wav": ".wav", "text/plain": ".txt", "application/json": ".json",
	}[kindOf(f)], ".bin")
}
