package model_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/gateway/model"
)

func paths() map[model.Dialect]string {
	return map[model.Dialect]string{
		model.Anthropic: "/v1/messages", model.OpenAIChat: "/v1/chat/completions", model.OpenAIResponses: "/v1/responses", model.Gemini: "/v1beta/models/small:generateContent",
	}
}

const (
	a = model.Anthropic
	c = model.OpenAIChat
	r = model.OpenAIResponses
	g = model.Gemini
)

// TestCheck verifies which requests are allowed, and how they are changed.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		d       model.Dialect
		in, out string // out is empty for an unchanged request
	}{
		"plain":               {a, `{"model":"small","messages":[{"role":"user","content":"x <&> 1e400"}]}`, ""},
		"order and numbers":   {c, `{"temperature":0.10,"model":"small","n":1}`, ""},
		"own tools":           {a, `{"model":"small","tools":[{"name":"x","input_schema":{}},{"type":"custom","name":"y"},{"type":"bash_20250124","name":"bash"}]}`, ""},
		"web search":          {a, `{"model":"small","tools":[{"name":"x"},{"type":"web_search_20250305","name":"web_search"}],"tool_choice":{"type":"tool","name":"web_search"}}`, `{"model":"small","tools":[{"name":"x"}]}`},
		"only web tools":      {a, `{"tools":[{"type":"web_fetch_20250910"},{"type":"code_execution_20250825"},{"type":"computer_20250124"}],"tool_choice":{"type":"any"},"model":"small"}`, `{"model":"small"}`},
		"a tool of tomorrow":  {a, `{"model":"small","tools":[{"type":"telepathy_20270101","name":"t"}]}`, `{"model":"small"}`},
		"servers":             {a, `{"model":"small","mcp_servers":[{"url":"https://x"}],"container":"c"}`, `{"model":"small"}`},
		"dearer":              {a, `{"model":"small","service_tier":"priority","speed":"fast","fallbacks":[{"model":"large"}]}`, `{"model":"small"}`},
		"in the background":   {r, `{"model":"small","background":true,"input":"x"}`, `{"model":"small","input":"x"}`},
		"codex":               {r, `{"model":"small","tools":[{"type":"function","name":"f"},{"type":"web_search"},{"type":"local_shell"},{"type":"custom","name":"apply_patch"}]}`, `{"model":"small","tools":[{"type":"function","name":"f"},{"type":"local_shell"},{"type":"custom","name":"apply_patch"}]}`},
		"in a namespace":      {r, `{"model":"small","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"},{"type":"mcp","server_url":"https://x"}]}]}`, `{"model":"small","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]}`},
		"namespaces in one":   {r, `{"model":"small","tools":[{"type":"namespace","name":"n","tools":[{"type":"namespace","name":"m","tools":[{"type":"function"}]}]}]}`, `{"model":"small"}`},
		"no count":            {g, `{"contents":[],"generateContentRequest":{"x":1}}`, ""},
		"hosted":              {r, `{"model":"small","tools":[{"type":"file_search"},{"type":"code_interpreter"},{"type":"image_generation"},{"type":"mcp"},{"type":"shell"}],"prompt":{"id":"p"}}`, `{"model":"small"}`},
		"stream of chat":      {c, `{"model":"small","stream":true}`, `{"model":"small","stream":true,"stream_options":{"include_usage":true}}`},
		"other spellings":     {c, `{"model":"small","stream":true,"streamOptions":{"includeUsage":false}}`, `{"model":"small","stream":true,"stream_options":{"include_usage":true}}`},
		"of other providers":  {c, `{"model":"small","messages":[],"enable_telepathy":true,"transforms":["middle-out"],"top_k":5,"reasoning":{"effort":"low"},"extra_body":{"enable_search":true},"route":"fallback","thinking":{"type":"enabled"}}`, `{"model":"small","messages":[],"top_k":5,"reasoning":{"effort":"low"},"thinking":{"type":"enabled"}}`},
		"usage not wanted":    {c, `{"model":"small","stream":true,"stream_options":{"include_usage":false,"x":1}}`, `{"model":"small","stream":true,"stream_options":{"include_usage":true,"x":1}}`},
		"search options":      {c, `{"model":"small","web_search_options":{},"plugins":[{"id":"web"}],"models":["large"],"search_parameters":{},"enable_search":true}`, `{"model":"small"}`},
		"gemini's own":        {g, `{"tools":[{"functionDeclarations":[{"name":"f"}],"googleSearch":{}},{"url_context":{}},{"codeExecution":{}}]}`, `{"tools":[{"functionDeclarations":[{"name":"f"}]}]}`},
		"gemini's, all":       {g, `{"tools":[{"google_search":{}}],"toolConfig":{},"model":"models/large"}`, `{}`},
		"inline data":         {a, `{"model":"small","messages":[{"content":[{"type":"image","source":{"type":"base64","data":"aaaa"}}]}]}`, ""},
		"data url":            {c, `{"model":"small","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aaaa"}}]}]}`, ""},
		"inline of gemini":    {g, `{"contents":[{"parts":[{"inlineData":{"data":"aa"}}]}]}`, ""},
		"a call's arguments":  {a, `{"model":"small","messages":[{"content":[{"type":"tool_use","input":{"image_url":"https://x","source":{"type":"url"}}}]}]}`, ""},
		"of gemini":           {g, `{"contents":[{"parts":[{"functionCall":{"args":{"fileUri":"x"}}},{"functionResponse":{"response":{"fileUri":"x"}}}]}]}`, ""},
		"talk of urls":        {c, `{"model":"small","messages":[{"content":"see image_url https://x"},{"content":[{"type":"text","text":"https://x"}]}]}`, ""},
		"citations":           {r, `{"model":"small","input":[{"content":[{"type":"output_text","annotations":[{"type":"url_citation","url":"https://x"}]}]}]}`, ""},
		"nothing in tools":    {a, `{"model":"small","tools":null,"messages":null}`, ""},
		"schema with tools":   {r, `{"model":"small","input":"x","tools":[{"type":"function","parameters":{"properties":{"tools":{"type":"array"}}}}]}`, ""},
		"a choice that stays": {a, `{"model":"small","tools":[{"name":"x"},{"type":"web_search_1"}],"tool_choice":{"type":"auto"}}`, `{"model":"small","tools":[{"name":"x"}],"tool_choice":{"type":"auto"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, status := model.Check(tt.d, paths()[tt.d], model.Grant{Models: []string{"small"}}, []byte(tt.in))
			if tt.out == "" {
				tt.out = tt.in
			}
			if diff := cmp.Diff(tt.out, string(out)); diff != "" || status != http.StatusOK {
				t.Errorf("%d (-want +got):\n%s", status, diff)
			}
		})
	}
}

// manyFields returns an object with more fields than allowed.
func manyFields() string {
	var b strings.Builder
	for i := range 1001 {
		fmt.Fprintf(&b, `,"f%d":0`, i)
	}
	return b.String()
}

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	const no, bad = http.StatusForbidden, http.StatusBadRequest
	for _, tt := range []struct {
		d      model.Dialect
		in     string
		status int
	}{
		{a, `{"model":"large"}`, no},
		{c, `{"model":"small","n":128}`, no},
		{g, `{"generationConfig":{"candidateCount":8}}`, no},
		{c, `{"model":"small","messages":[{"content":[{"type":"input_audio","input_audio":{"data":"https://x/a.wav"}}]}]}`, no},
		{c, `{"model":"small","messages":[{"content":[{"type":"video","video":["data:image/png;base64,x","http://x/1.png"]}]}]}`, no},
		{r, `{"model":"small","input":"x","previous_response_id":"resp_1"}`, no},
		{r, `{"model":"small","input":"x","previousResponseId":"resp_1"}`, no},
		{r, `{"model":"small","input":"x","conversation":{"id":"conv_1"}}`, no},
		{r, `{"model":"small","input":[{"type":"item_reference","id":"msg_1"}]}`, no},
		// A reference by default.
		{r, `{"model":"small","input":[{"role":"user","content":"x"},{"id":"msg_1","type":null}]}`, no},
		{r, `{"model":"small","input":["msg_1"]}`, bad},
		{r, `{"model":"small","input":[{"content":[{"type":"input_file","file_id":"file-1"}]}]}`, no},
		{a, `{"model":"small","messages":[{"content":[{"type":"document","source":{"type":"file","file_id":"file_1"}}]}]}`, no},
		{g, `{"contents":[],"cachedContent":"cachedContents/x"}`, no},
		{a, `{"model":"small","max_tokens":1.5}`, bad},
		{a, `{"model":"small","max_tokens":"many"}`, bad},
		{a, `{"model":"small"` + manyFields() + `}`, bad},
		{c, `{"model":"small","tools":[{}` + strings.Repeat(`,{}`, 1000) + `]}`, bad},
		{a, `{"model":"small:online"}`, no},
		{a, `{"messages":[]}`, bad},
		{a, `{"model":["small"]}`, bad},
		{a, `{"model":"small","model":"large"}`, bad},
		{a, `{"model":"large","Model":"small"}`, bad},
		{a, `{"model":"small","messages":[],"me\u017f\u017fages":[]}`, bad},
		{a, `{"model":"small","tools":{}}`, bad},
		{a, `{"model":"small","tools":["web_search"]}`, bad},
		{a, `{"model":"small","tools":[{"type":"custom","Type":"web_search_1"}]}`, bad},
		{a, `{"model":"small"} {"model":"large"}`, bad},
		{a, `[{"model":"small"}]`, bad},
		{a, ``, bad},
		{a, `{"model":"small"`, bad},
		{a, "{\"model\":\"small\",\"messages\":\"\xff\"}", bad},
		{a, `{"model":"small","messages":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, bad},
		{a, `{"model":"small","stream":"yes"}`, bad},
		{a, `{"model":"small","messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}]}`, no},
		{a, `{"model":"small","messages":[{"content":[{"type":"image","source":{"url":"https://x","type":"base64"}}]}]}`, no},
		{a, `{"model":"small","messages":[{"content":[{"type":"image","source":{"type":"base64","type":"url"}}]}]}`, no},
		{a, `{"model":"small","messages":[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url"}}]}]}]}`, no},
		{a, `{"model":"small","system":[{"type":"document","source":{"type":"url","url":"https://x"}}]}`, no},
		{c, `{"model":"small","messages":[{"content":[{"type":"image_url","image_url":{"url":"https://x"}}]}]}`, no},
		{c, `{"model":"small","messages":[{"content":[{"type":"image_url","image_url":"https://x"}]}]}`, no},
		{c, `{"model":"small","stream":true,"stream_options":[]}`, bad},
		{r, `{"model":"small","input":[{"content":[{"type":"input_image","image_url":"http://169.254.169.254/"}]}]}`, no},
		{r, `{"model":"small","input":[{"content":[{"type":"input_file","file_url":"https://x"}]}]}`, no},
		{r, `{"model":"small","input":[{"type":"function_call_output","output":[{"type":"input_image","image_url":"https://x"}]}]}`, no},
		{r, `{"model":"small","input":[{"type":"additional_tools","tools":[{"type":"web_search"}]}]}`, no},
		{r, `{"model":"small","tools":[{"type":"namespace","name":"n"}]}`, bad},
		{g, `{"contents":[{"parts":[{"fileData":{"fileUri":"https://youtu.be/x"}}]}]}`, no},
		{g, `{"contents":[{"parts":[{"file_data":{"file_uri":"gs://x"}}]}]}`, no},
		{g, `{"system_instruction":{"parts":[{"fileData":{"fileUri":"https://x"}}]}}`, no},
	} {
		if _, status := model.Check(tt.d, paths()[tt.d], model.Grant{Models: []string{"small"}}, []byte(tt.in)); status != tt.status {
			t.Errorf("%s: %d for %.200s", tt.d, status, tt.in)
		}
	}
}

// TestCheckWeb verifies that Web allows searches and fetches, and nothing else that the provider runs.
func TestCheckWeb(t *testing.T) {
	t.Parallel()
	grant := model.Grant{Models: []string{"small"}, Web: true}
	for _, tt := range []struct {
		d       model.Dialect
		in, out string
	}{
		{a, `{"model":"small","tools":[{"type":"web_search_1"}],"messages":[{"content":[{"source":{"type":"url","url":"https://x"}}]}]}`, ""},
		{a, `{"model":"small","tools":[{"type":"advisor_20260301","model":"large"},{"type":"web_search_1","model":"large"},{"type":"web_fetch_1"}]}`, `{"model":"small","tools":[{"type":"web_fetch_1"}]}`},
		{a, `{"model":"small","mcp_servers":[{"url":"https://x"}],"container":"c","tools":[{"type":"code_execution_20250825"},{"type":"computer_20250124"}]}`, `{"model":"small"}`},
		{r, `{"model":"small","input":"x","tools":[{"type":"web_search"},{"type":"web_search_preview"},{"type":"mcp","server_url":"https://x"},{"type":"file_search"},{"type":"code_interpreter"}]}`, `{"model":"small","input":"x","tools":[{"type":"web_search"},{"type":"web_search_preview"}]}`},
		{r, `{"model":"small","input":[{"type":"additional_tools","tools":[{"type":"web_search"}]}]}`, ""},
		{c, `{"model":"small","web_search_options":{},"enable_search":true,"plugins":[{"id":"web"}],"search_parameters":{}}`, `{"model":"small","web_search_options":{},"enable_search":true,"search_parameters":{}}`},
		{g, `{"tools":[{"google_search":{}},{"urlContext":{}},{"codeExecution":{}},{"fileSearch":{}}]}`, `{"tools":[{"google_search":{}},{"urlContext":{}}]}`},
		{g, `{"contents":[{"parts":[{"fileData":{"fileUri":"https://youtu.be/x"}}]}]}`, ""},
	} {
		if tt.out == "" {
			tt.out = tt.in
		}
		out, _ := model.Check(tt.d, paths()[tt.d], grant, []byte(tt.in))
		if diff := cmp.Diff(tt.out, string(out)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.in, diff)
		}
	}
	if _, status := model.Check(r, paths()[r], grant, []byte(`{"model":"small","input":[{"type":"additional_tools","tools":[{"type":"mcp"}]}]}`)); status != http.StatusForbidden {
		t.Errorf("a server among further tools: %d", status)
	}
	for _, uri := range []string{"https://GenerativeLanguage.googleapis.com./v1beta/files/x", "files/x", "gs://bucket/x"} {
		if _, status := model.Check(g, paths()[g], grant, []byte(`{"contents":[{"parts":[{"file_data":{"file_uri":"`+uri+`"}}]}]}`)); status != http.StatusForbidden {
			t.Errorf("%s, which the provider has: %d", uri, status)
		}
	}
	if _, status := model.Check(a, paths()[a], grant, []byte(`{"model":"large"}`)); status != http.StatusForbidden {
		t.Errorf("another model: %d", status)
	}
}

// TestCheckShortens verifies that answers are limited to the remaining budget.
func TestCheckShortens(t *testing.T) {
	t.Parallel()
	grant := model.Grant{Models: []string{"small"}, Budget: model.Budget{OutputTokens: 1000}}
	for _, tt := range []struct {
		d       model.Dialect
		in, out string
		status  int
	}{
		{a, `{"model":"small","max_tokens":32000,"messages":[]}`, `{"model":"small","max_tokens":1000,"messages":[]}`, http.StatusOK},
		{a, `{"model":"small","max_tokens":999}`, `{"model":"small","max_tokens":999}`, http.StatusOK},
		{a, `{"model":"small","max_tokens":32000,"thinking":{"type":"enabled","budget_tokens":999}}`, `{"model":"small","max_tokens":1000,"thinking":{"type":"enabled","budget_tokens":999}}`, http.StatusOK},
		{a, `{"model":"small","max_tokens":32000,"thinking":{"type":"enabled","budget_tokens":1000}}`, "", http.StatusForbidden},
		{c, `{"model":"small","max_completion_tokens":1e5,"max_tokens":null}`, `{"model":"small","max_tokens":1000}`, http.StatusOK},
		// Not a field of this dialect.
		{c, `{"model":"small","max_output_tokens":1}`, `{"model":"small","max_tokens":1000}`, http.StatusOK},
		{r, `{"model":"small","max_output_tokens":5000}`, `{"model":"small","max_output_tokens":1000}`, http.StatusOK},
		{r, `{"model":"small","input":"x"}`, `{"model":"small","input":"x","max_output_tokens":1000}`, http.StatusOK},
		{g, `{"contents":[]}`, `{"contents":[],"generationConfig":{"maxOutputTokens":1000}}`, http.StatusOK},
		{g, `{"generation_config":{"maxOutputTokens":"65536","x":1}}`, `{"generationConfig":{"maxOutputTokens":1000,"x":1}}`, http.StatusOK},
	} {
		out, status := model.Check(tt.d, paths()[tt.d], grant, []byte(tt.in))
		if diff := cmp.Diff(tt.out, string(out)); diff != "" || status != tt.status {
			t.Errorf("%d for %s (-want +got):\n%s", status, tt.in, diff)
		}
	}
	grant.Budget.OutputTokens = 3000
	think := []byte(`{"model":"small","max_tokens":32000,"thinking":{"type":"enabled","budget_tokens":31999}}`)
	want := `{"model":"small","max_tokens":3000,"thinking":{"type":"enabled","budget_tokens":1500}}`
	if out, _ := model.Check(a, paths()[a], grant, think); string(out) != want {
		t.Errorf("thinking: %s", out)
	}
	grant.Budget.OutputTokens = 1 // OpenAI accepts no number below 16
	if out, _ := model.Check(r, paths()[r], grant, []byte(`{"model":"small","max_output_tokens":5000}`)); string(out) != `{"model":"small","max_output_tokens":16}` {
		t.Errorf("%s", out)
	}
	// Its models reject max_tokens, and numbers far above their own limit.
	grant.Provider, grant.Budget.OutputTokens = "openai", 1_000_000
	for _, in := range []string{`{"model":"small","max_tokens":16000}`, `{"model":"small"}`} {
		if out, _ := model.Check(c, paths()[c], grant, []byte(in)); string(out) != `{"model":"small","max_completion_tokens":16000}` {
			t.Errorf("%s", out)
		}
	}
}

// TestCheckCount verifies Gemini's request to count tokens, which contains a nested request.
func TestCheckCount(t *testing.T) {
	t.Parallel()
	grant := model.Grant{Models: []string{"small"}}
	const path = "/v1beta/models/small:countTokens"
	out, _ := model.Check(g, path, grant, []byte(`{"generateContentRequest":{"model":"models/large","contents":[],"tools":[{"googleSearch":{}}]}}`))
	if diff := cmp.Diff(`{"generateContentRequest":{"contents":[],"model":"models/small"}}`, string(out)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, status := model.Check(g, path, grant, []byte(`{"generateContentRequest":{"contents":[{"parts":[{"fileData":{"fileUri":"https://x"}}]}]}}`)); status != http.StatusForbidden {
		t.Errorf("a URL inside: %d", status)
	}
}

// FuzzCheck verifies that an allowed request is valid JSON, uses an allowed model, passes a second check unchanged, and
// contains nothing that the provider runs.
func FuzzCheck(f *testing.F) {
	for i, body := range []string{
		`{"model":"small","tools":[{"type":"web_search"},{"type":"function"}],"messages":[{"content":[{"image_url":"data:x"}]}]}`,
		`{"generateContentRequest":{"contents":[{"parts":[{"fileData":{"fileUri":"x"}}]}]}}`, `{"model":"small","Model":"large"}`,
		`{"model":"small","stream":true,"stream_options":{}}`,
	} {
		f.Add(body, byte(i))
	}
	all := []model.Dialect{a, c, r, g}
	f.Fuzz(func(t *testing.T, body string, which byte) {
		d := all[int(which)%len(all)]
		grant := model.Grant{Models: []string{"small"}}
		out, status := model.Check(d, paths()[d], grant, []byte(body))
		if status != http.StatusOK {
			return
		}
		again, status := model.Check(d, paths()[d], grant, out)
		if string(again) != string(out) || status != http.StatusOK {
			t.Fatalf("%d, from %s: %s", status, out, again)
		}
		var v struct {
			Model string
			Tools []map[string]any
		}
		if err := json.Unmarshal(out, &v); err != nil || d != g && v.Model != "small" {
			t.Fatalf("%v: %s", err, out)
		}
		for _, tool := range v.Tools {
			kind, _ := tool["type"].(string)
			if d != g && strings.Contains(kind, "web") {
				t.Fatalf("a provider tool: %s", out)
			}
			for name := range tool {
				if d == g && strings.ToLower(strings.Map(letters, name)) != "functiondeclarations" {
					t.Fatalf("a provider tool: %s", out)
				}
			}
		}
	})
}

func letters(r rune) rune {
	switch r {
	case '_', '-':
		return -1
	case 'ſ':
		return 's'
	}
	return r
}
