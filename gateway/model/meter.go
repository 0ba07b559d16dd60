package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
)

// tokens are the token counts of an answer. input includes cache reads and writes, and output includes reasoning.
type tokens struct {
	input, output, cacheRead, cacheWrite, cacheWriteLong, reasoning int64
}

// maxEvent is the maximum size of a stream event and of a non-streamed answer. The last event of OpenAI's Responses API
// contains the whole answer.
const maxEvent = 32 << 20

var errTooLong = errors.New("a provider's response is too long to meter")

// meter extracts the usage from an answer while it passes. It delays no data.
type meter struct {
	dialect Dialect
	stream  bool // stream of events; otherwise one JSON text

	used  tokens
	final bool // used covers the whole answer
	bytes int64

	line  []byte // current incomplete line of a stream; otherwise the whole answer
	event []byte // data of the current event
}

// Write processes the next part of an answer. The only error is errTooLong.
func (m *meter) Write(p []byte) (int, error) {
	m.bytes += int64(len(p))
	if !m.stream {
		if len(m.line)+len(p) > maxEvent {
			return 0, errTooLong
		}
		m.line = append(m.line, p...)
		return len(p), nil
	}
	for rest := p; len(rest) > 0; {
		part, next, ended := bytes.Cut(rest, []byte{'\n'})
		if len(m.line)+len(m.event)+len(part) > maxEvent {
			return 0, errTooLong
		}
		m.line = append(m.line, part...)
		if ended {
			m.endLine()
		}
		rest = next
	}
	return len(p), nil
}

// endLine processes a line of a stream. An empty line ends the event.
func (m *meter) endLine() {
	line := bytes.TrimSuffix(m.line, []byte("\r"))
	if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		m.event = append(append(m.event, data...), '\n')
	}
	if len(line) == 0 {
		m.take(m.event)
		m.event = m.event[:0]
	}
	m.line = m.line[:0]
}

// end processes the remaining data after the end of the answer.
func (m *meter) end() {
	if m.stream {
		m.endLine()
		m.take(m.event)
	} else {
		m.takeJSON()
	}
	m.line, m.event = nil, nil
}

// takeJSON processes an answer without a stream: one object, or a list of objects for Gemini.
func (m *meter) takeJSON() {
	text := bytes.TrimLeft(m.line, " \t\r\n")
	if len(text) == 0 || text[0] != '[' {
		m.take(text)
		return
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	_, _ = dec.Token() // opening bracket
	for dec.More() {
		var part json.RawMessage
		if dec.Decode(&part) != nil {
			return
		}
		m.take(part)
	}
}

// told is the usage data of an event, in any dialect.
type told struct {
	Type     string      `json:"type"`
	Usage    *usage      `json:"usage"`
	Message  *wrapped    `json:"message"`
	Response *wrapped    `json:"response"`
	Metadata *geminiUsed `json:"usageMetadata"`
}

type wrapped struct {
	Usage *usage `json:"usage"`
}

// usage is the usage of Anthropic and of both OpenAI APIs, which use different names.
type usage struct {
	Input      *int64 `json:"input_tokens"`
	Output     *int64 `json:"output_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
	Creation   *struct {
		Long int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
	// Anthropic's steps for the answer; the sums omit the steps for shortening a context.
	Iterations       []usage  `json:"iterations"`
	Prompt           *int64   `json:"prompt_tokens"`
	Completion       *int64   `json:"completion_tokens"`
	InputDetails     *details `json:"input_tokens_details"`
	OutputDetails    *details `json:"output_tokens_details"`
	PromptDetails    *details `json:"prompt_tokens_details"`
	CompletionDetail *details `json:"completion_tokens_details"`
}

type details struct {
	Cached    int64 `json:"cached_tokens"`
	Written   int64 `json:"cache_write_tokens"`
	Reasoning int64 `json:"reasoning_tokens"`
}

type geminiUsed struct {
	Prompt     int64 `json:"promptTokenCount"`
	ToolPrompt int64 `json:"toolUsePromptTokenCount"`
	Candidates int64 `json:"candidatesTokenCount"`
	Thoughts   int64 `json:"thoughtsTokenCount"`
	Cached     int64 `json:"cachedContentTokenCount"`
}

// take processes an event or a whole answer. It ignores data other than a JSON object.
func (m *meter) take(event []byte) {
	if !bytes.Contains(event, []byte(`sage`)) {
		// Matches usage, usageMetadata, and message_start; most events have none of these.
		return
	}
	var t told
	if json.Unmarshal(event, &t) != nil {
		return
	}
	switch m.dialect {
	case Anthropic:
		m.takeAnthropic(t)
	case OpenAIResponses:
		u := t.Usage // of a non-streamed answer
		if t.Response != nil {
			u = t.Response.Usage
		}
		m.takeOpenAI(u)
	case OpenAIChat:
		m.takeOpenAI(t.Usage)
	case Gemini:
		if u := t.Metadata; u != nil {
			m.used = tokens{
				input: u.Prompt + u.ToolPrompt, output: u.Candidates + u.Thoughts, cacheRead: u.Cached, reasoning: u.Thoughts,
			}.atLeastZero()
			m.final = true // each event has the sums so far, so a truncated stream needs no estimate
		}
	}
}

// takeAnthropic processes the start of a message, and the replacing values at the end.
func (m *meter) takeAnthropic(t told) {
	u := t.Usage
	if t.Message != nil {
		u = t.Message.Usage
	}
	if u == nil {
		return
	}
	if m.final = t.Message == nil; len(u.Iterations) == 0 {
		m.used = m.used.with(*u)
		return
	}
	m.used = tokens{}
	for _, one := range u.Iterations {
		m.used = m.used.plus(tokens{}.with(one))
	}
}

// with returns t, updated with the values in a report of Anthropic.
func (t tokens) with(u usage) tokens {
	plain := t.input - t.cacheRead - t.cacheWrite - t.cacheWriteLong
	set(&plain, u.Input)
	set(&t.output, u.Output)
	set(&t.cacheRead, u.CacheRead)
	if u.CacheWrite != nil {
		t.cacheWriteLong = 0
		if u.Creation != nil {
			t.cacheWriteLong = min(max(u.Creation.Long, 0), max(*u.CacheWrite, 0))
		}
		t.cacheWrite = *u.CacheWrite - t.cacheWriteLong
	}
	t = t.atLeastZero()
	t.input = min(max(plain, 0), maxTokens) + t.cacheRead + t.cacheWrite + t.cacheWriteLong
	return t
}

func (t tokens) plus(u tokens) tokens {
	return tokens{
		t.input + u.input, t.output + u.output, t.cacheRead + u.cacheRead, t.cacheWrite + u.cacheWrite,
		t.cacheWriteLong + u.cacheWriteLong, t.reasoning + u.reasoning,
	}.atLeastZero()
}

func (m *meter) takeOpenAI(u *usage) {
	if u == nil {
		return
	}
	var t tokens
	set(&t.input, u.Input)
	set(&t.input, u.Prompt)
	set(&t.output, u.Output)
	set(&t.output, u.Completion)
	for _, d := range []*details{u.InputDetails, u.OutputDetails, u.PromptDetails, u.CompletionDetail} {
		if d != nil {
			t.cacheRead += d.Cached
			t.cacheWrite += d.Written
			t.reasoning += d.Reasoning
		}
	}
	m.used, m.final = t.atLeastZero(), true
}

func set(to *int64, from *int64) { *to = *cmp.Or(from, to) }

// maxTokens is more than any answer has. Sums of such numbers do not overflow.
const maxTokens = 1 << 40

func (t tokens) atLeastZero() tokens {
	for _, n := range []*int64{&t.input, &t.output, &t.cacheRead, &t.cacheWrite, &t.cacheWriteLong, &t.reasoning} {
		*n = min(max(*n, 0), maxTokens)
	}
	return t
}

// bytesPerToken is a low value for all forms of text on the wire, to keep estimates rather too high.
const bytesPerToken = 4

// total returns the usage of the answer. If the answer has no usage data, total uses the larger of the answer's size
// and the request's limit, because the model may have used hidden reasoning before the answer broke off.
func (m *meter) total(input, longest int64) (t tokens, estimated bool) {
	if m.final {
		return m.used, false
	}
	t = m.used
	t.input = cmp.Or(t.input, input)
	t.output = max(t.output, m.bytes/bytesPerToken, longest)
	return t, true
}

// metered is the body of an answer. The reader gets all data. If the reader closes it early, metered reads the rest, as
// long as the request's context allows, because the provider charges for the whole answer.
type metered struct {
	io.ReadCloser
	m     *meter
	first func() // called with the first bytes
	done  func() // called once, when the end was reached or cannot be reached
	ended bool
}

func (b *metered) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.first()
		if _, werr := b.m.Write(p[:n]); werr != nil {
			err = werr
		}
	}
	if err != nil {
		b.finish(err)
	}
	return n, err
}

func (b *metered) finish(err error) {
	if b.ended {
		return
	}
	b.ended = true
	if errors.Is(err, io.EOF) {
		b.m.end()
	}
	b.done()
}

func (b *metered) Close() error {
	if !b.ended {
		_, _ = io.Copy(io.Discard, struct{ io.Reader }{b}) // Read handles the end
	}
	b.finish(io.ErrUnexpectedEOF)
	return b.ReadCloser.Close()
}
