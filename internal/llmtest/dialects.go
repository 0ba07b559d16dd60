package llmtest

import (
	"fmt"
	"net/http"
	"slices"
)

// answers returns the functions for writing an answer, by dialect.
func answers() map[string]func(*writer, Answer, Usage) {
	return map[string]func(*writer, Answer, Usage){
		"anthropic": anthropic, "openai-responses": responses, "openai-chat": chat, "gemini": gemini, "ollama": ollama,
	}
}

// writer writes one answer.
type writer struct {
	w    http.ResponseWriter
	req  Request
	gate func()
	cut  bool
	sent int // number of events
}

// whole writes an answer without streaming.
func (w *writer) whole(v any) {
	if w.cut {
		w.w.Header().Set("Content-Length", "1000000")
		_, _ = w.w.Write([]byte("{"))
		_ = http.NewResponseController(w.w).Flush()
		panic(http.ErrAbortHandler)
	}
	writeJSON(w.w, http.StatusOK, v)
}

// event writes an event of a stream. The events before a gate are flushed. Without a gate, a short answer arrives in
// one piece, because Genkit's plugin for Anthropic leaves a stream open if it cannot read it.
func (w *writer) event(name string, v any) {
	if w.sent == 0 {
		w.w.Header().Set("Content-Type", "text/event-stream")
	} else if w.gate != nil || w.cut {
		_ = http.NewResponseController(w.w).Flush() // the client may have disconnected
	}
	if w.sent > 0 && w.gate != nil {
		w.gate()
	}
	if w.cut && w.sent > 1 {
		panic(http.ErrAbortHandler)
	}
	w.sent++
	if name != "" {
		fmt.Fprintf(w.w, "event: %s\n", name)
	}
	fmt.Fprintf(w.w, "data: %s\n\n", text(v))
}

// each returns one part of an answer for each call.
func each(calls []Call, part func(i int, c Call) Object) []Object {
	var parts []Object
	for i, c := range calls {
		parts = append(parts, part(i, c))
	}
	return parts
}

// callID returns an id for the ith call of an answer. The id is unique in the conversation, because clients treat two
// calls with the same id as one.
func (r Request) callID(prefix string, i int) string {
	return fmt.Sprintf("%s_%d_%d", prefix, len(r.Results()), i)
}

func anthropic(w *writer, a Answer, u Usage) {
	content, stop := []Object{{"type": "text", "text": a.Text}}, "end_turn"
	if len(a.Calls) > 0 {
		stop = "tool_use"
		content = each(a.Calls, func(i int, c Call) Object {
			return Object{"type": "tool_use", "id": w.req.callID("toolu", i), "name": c.Name, "input": c.Input}
		})
	}
	if a.Refused {
		stop = "refusal"
	}
	if a.Thought != "" {
		content = slices.Insert(content, 0, Object{"type": "thinking", "thinking": a.Thought, "signature": "eA=="})
	}
	used := Object{
		"input_tokens": u.Input - u.CacheRead - u.CacheWrite, "cache_read_input_tokens": u.CacheRead, "cache_creation_input_tokens": u.CacheWrite,
		"cache_creation": Object{"ephemeral_1h_input_tokens": u.CacheWrite / 2}, "output_tokens": u.Output,
	}
	message := Object{"id": "msg_1", "type": "message", "role": "assistant", "model": w.req.Model, "content": content, "stop_reason": stop, "usage": used}
	if !w.req.Stream {
		w.whole(message)
		return
	}
	started := Object{"id": "msg_1", "type": "message", "role": "assistant", "model": w.req.Model, "content": []Object{}, "usage": Object{
		"input_tokens": used["input_tokens"], "cache_read_input_tokens": u.CacheRead, "cache_creation_input_tokens": u.CacheWrite,
		"cache_creation": used["cache_creation"], "output_tokens": 1,
	}}
	w.event("message_start", Object{"type": "message_start", "message": started})
	for i, block := range content {
		var deltas []Object
		begun := Object{"type": "text", "text": ""}
		switch block["type"] {
		case "text":
			for _, piece := range pieces(a.Text) {
				deltas = append(deltas, Object{"type": "text_delta", "text": piece})
			}
		case "thinking":
			begun = Object{"type": "thinking", "thinking": "", "signature": ""}
			deltas = []Object{{"type": "thinking_delta", "thinking": a.Thought}, {"type": "signature_delta", "signature": block["signature"]}}
		default:
			begun = Object{"type": "tool_use", "id": block["id"], "name": block["name"], "input": Object{}}
			deltas = []Object{{"type": "input_json_delta", "partial_json": text(block["input"])}}
		}
		w.event("content_block_start", Object{"type": "content_block_start", "index": i, "content_block": begun})
		for _, d := range deltas {
			w.event("content_block_delta", Object{"type": "content_block_delta", "index": i, "delta": d})
		}
		w.event("content_block_stop", Object{"type": "content_block_stop", "index": i})
	}
	w.event("message_delta", Object{"type": "message_delta", "delta": Object{"stop_reason": stop}, "usage": Object{"output_tokens": u.Output}})
	w.event("message_stop", Object{"type": "message_stop"})
}

func chat(w *writer, a Answer, u Usage) {
	used := Object{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"prompt_tokens_details": Object{"cached_tokens": u.CacheRead}, "completion_tokens_details": Object{"reasoning_tokens": u.Reasoning},
	}
	calls, stop := each(a.Calls, func(i int, c Call) Object {
		return Object{"index": i, "id": w.req.callID("call", i), "type": "function", "function": Object{"name": c.Name, "arguments": text(c.Input)}}
	}), "stop"
	if len(calls) > 0 {
		stop = "tool_calls"
	}
	if !w.req.Stream {
		message := Object{"role": "assistant", "content": a.Text}
		if len(calls) > 0 {
			message = Object{"role": "assistant", "content": nil, "tool_calls": calls}
		}
		w.whole(Object{"id": "x", "object": "chat.completion", "created": 1, "model": w.req.Model, "usage": used,
			"choices": []Object{{"index": 0, "finish_reason": stop, "message": message}}})
		return
	}
	chunk := func(choices []Object, used any) {
		w.event("", Object{"id": "x", "object": "chat.completion.chunk", "created": 1, "model": w.req.Model, "choices": choices, "usage": used})
	}
	for i, c := range a.Calls { // the arguments are sent in two pieces
		args := text(c.Input)
		f := Object{"index": i, "id": calls[i]["id"], "type": "function", "function": Object{"name": c.Name, "arguments": args[:len(args)/2]}}
		rest := Object{"index": i, "function": Object{"arguments": args[len(args)/2:]}}
		chunk([]Object{{"index": 0, "delta": Object{"role": "assistant", "tool_calls": []Object{f}}}}, nil)
		chunk([]Object{{"index": 0, "delta": Object{"tool_calls": []Object{rest}}}}, nil)
	}
	if len(calls) == 0 {
		for _, piece := range pieces(a.Text) {
			chunk([]Object{{"index": 0, "delta": Object{"role": "assistant", "content": piece}}}, nil)
		}
	}
	chunk([]Object{{"index": 0, "delta": Object{}, "finish_reason": stop}}, nil)
	if options, _ := w.req.Body["stream_options"].(Object); options["include_usage"] == true {
		chunk([]Object{}, used)
	}
	fmt.Fprint(w.w, "data: [DONE]\n\n")
}

// namespaceOf returns the namespace of a tool in a request. Codex puts the tools of MCP servers into namespaces.
func namespaceOf(body Object, tool string) (space string) {
	groups, _ := body["tools"].([]any)
	for _, g := range groups {
		group, _ := g.(Object)
		if group["type"] != "namespace" {
			continue
		}
		objects(group["tools"], func(o Object) {
			if o["name"] == tool {
				space, _ = group["name"].(string)
			}
		})
	}
	return space
}

func responses(w *writer, a Answer, u Usage) {
	output := each(a.Calls, func(i int, c Call) Object {
		call := Object{"type": "function_call", "id": w.req.callID("fc", i), "call_id": w.req.callID("call", i), "name": c.Name, "arguments": text(c.Input), "status": "completed"}
		if space := namespaceOf(w.req.Body, c.Name); space != "" {
			call["namespace"] = space
		}
		return call
	})
	if len(output) == 0 {
		output = []Object{{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []Object{{"type": "output_text", "text": a.Text, "annotations": []Object{}}}}}
	}
	if a.Thought != "" {
		output = slices.Insert(output, 0, Object{"type": "reasoning", "id": "rs_1", "summary": []Object{{"type": "summary_text", "text": a.Thought}}})
	}
	done := Object{"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": w.req.Model, "output": output, "usage": Object{
		"input_tokens": u.Input, "output_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"input_tokens_details": Object{"cached_tokens": u.CacheRead}, "output_tokens_details": Object{"reasoning_tokens": u.Reasoning},
	}}
	if !w.req.Stream {
		w.whole(done)
		return
	}
	event := func(kind string, o Object) {
		o["type"], o["sequence_number"] = kind, w.sent
		w.event(kind, o)
	}
	event("response.created", Object{"response": Object{"id": "resp_1", "object": "response", "status": "in_progress", "model": w.req.Model, "output": []Object{}, "usage": nil}})
	for i, item := range output {
		event("response.output_item.added", Object{"output_index": i, "item": item})
		if item["type"] == "message" {
			for _, piece := range pieces(a.Text) {
				event("response.output_text.delta", Object{"output_index": i, "item_id": "msg_1", "content_index": 0, "delta": piece})
			}
		}
		event("response.output_item.done", Object{"output_index": i, "item": item})
	}
	event("response.completed", Object{"response": done})
}

func gemini(w *writer, a Answer, u Usage) {
	part := func(parts []Object, last bool, output int64) Object {
		candidate := Object{"content": Object{"role": "model", "parts": parts}}
		if last {
			candidate["finishReason"] = map[bool]string{true: "SAFETY", false: "STOP"}[a.Refused]
		}
		return Object{"candidates": []Object{candidate}, "modelVersion": w.req.Model, "usageMetadata": Object{
			"promptTokenCount": u.Input, "cachedContentTokenCount": u.CacheRead, "candidatesTokenCount": output, "thoughtsTokenCount": u.Reasoning,
			"totalTokenCount": u.Input + output + u.Reasoning,
		}}
	}
	parts := each(a.Calls, func(_ int, c Call) Object { return Object{"functionCall": Object{"name": c.Name, "args": c.Input}} })
	if len(parts) == 0 {
		texts := []string{a.Text}
		if w.req.Stream {
			texts = pieces(a.Text)
		}
		for _, piece := range texts {
			parts = append(parts, Object{"text": piece})
		}
	}
	if a.Thought != "" {
		parts = slices.Insert(parts, 0, Object{"text": a.Thought, "thought": true})
	}
	switch output := u.Output - u.Reasoning; {
	case a.Refused && w.req.Stream:
		w.event("", part([]Object{}, true, output))
	case a.Refused:
		w.whole(part([]Object{}, true, output))
	case !w.req.Stream:
		w.whole(part(parts, true, output))
	case w.req.Query != "alt=sse":
		w.whole([]Object{part(parts[:1], false, 1), part(parts[1:], true, output)})
	default:
		for i := range parts {
			last := i == len(parts)-1
			n := int64(i)
			if last {
				n = output
			}
			w.event("", part(parts[i:i+1], last, n))
		}
	}
}

func ollama(w *writer, a Answer, u Usage) {
	message := Object{"role": "assistant", "content": a.Text}
	if len(a.Calls) > 0 {
		message = Object{"role": "assistant", "content": "", "tool_calls": each(a.Calls, func(_ int, c Call) Object {
			return Object{"function": Object{"name": c.Name, "arguments": c.Input}}
		})}
	}
	w.whole(Object{"model": w.req.Model, "created_at": "2026-01-01T00:00:00Z", "message": message, "done": true, "prompt_eval_count": u.Input, "eval_count": u.Output})
}
