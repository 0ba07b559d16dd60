package model_test

import (
	"math"
	"testing"

	"github.com/workcell-dev/workcell/gateway/model"
)

// used holds input, output, cache reads, cache writes for five minutes and for an hour, and reasoning.
type used = [6]int64

func TestMeter(t *testing.T) {
	t.Parallel()
	const sse = true
	for name, tt := range map[string]struct {
		d      model.Dialect
		stream bool
		in     string
		want   used
		final  bool
	}{
		"anthropic": {a, sse, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"cache_read_input_tokens\":100,\"cache_creation_input_tokens\":7,\"cache_creation\":{\"ephemeral_1h_input_tokens\":3},\"output_tokens\":1}}}\n\n" +
			"data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":5}}\n\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":25}}\n\n", used{117, 25, 100, 4, 3, 0}, true},
		"the end has it all":        {a, sse, "data: {\"message\":{\"usage\":{\"input_tokens\":1}}}\n\ndata: {\"usage\":{\"input_tokens\":9,\"output_tokens\":2,\"cache_read_input_tokens\":3}}\n\n", used{12, 2, 3, 0, 0, 0}, true},
		"a context was shortened":   {a, sse, "data: {\"message\":{\"usage\":{\"input_tokens\":9}}}\n\ndata: {\"usage\":{\"input_tokens\":2,\"output_tokens\":3,\"iterations\":[{\"type\":\"compaction\",\"input_tokens\":100,\"output_tokens\":20},{\"type\":\"message\",\"input_tokens\":2,\"output_tokens\":3,\"cache_read_input_tokens\":5}]}}\n\n", used{107, 23, 5, 0, 0, 0}, true},
		"cut":                       {a, sse, "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\ndata: {\"type\":\"mess", used{10, 1, 0, 0, 0, 0}, false},
		"line ends":                 {c, sse, ": hello\r\ndata: {\"usage\":\r\ndata: {\"prompt_tokens\":1,\"completion_tokens\":2}}\r\n\r\n", used{1, 2, 0, 0, 0, 0}, true},
		"no blank line at the end":  {c, sse, "data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}", used{1, 2, 0, 0, 0, 0}, true},
		"only deltas":               {c, sse, "data: {\"choices\":[{\"delta\":{\"content\":\"usage\"}}],\"usage\":null}\n\ndata: [DONE]\n\n", used{}, false},
		"responses":                 {r, sse, "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":6,\"input_tokens_details\":{\"cached_tokens\":2,\"cache_write_tokens\":1},\"output_tokens_details\":{\"reasoning_tokens\":4}}}}\n\n", used{5, 6, 2, 1, 0, 4}, true},
		"gemini":                    {g, sse, "data: {\"usageMetadata\":{\"promptTokenCount\":5}}\n\ndata: {\"usageMetadata\":{\"promptTokenCount\":5,\"candidatesTokenCount\":3,\"thoughtsTokenCount\":4,\"cachedContentTokenCount\":1,\"toolUsePromptTokenCount\":2}}\n\n", used{7, 7, 1, 0, 0, 4}, true},
		"gemini, a list":            {g, false, " [{\"usageMetadata\":{\"promptTokenCount\":5}}\n,{\"usageMetadata\":{\"promptTokenCount\":5,\"candidatesTokenCount\":3}}]", used{5, 3, 0, 0, 0, 0}, true},
		"gemini, an object":         {g, false, "{\"usageMetadata\":{\"promptTokenCount\":5,\"candidatesTokenCount\":3}}", used{5, 3, 0, 0, 0, 0}, true},
		"at once":                   {a, false, "{\"type\":\"message\",\"usage\":{\"input_tokens\":1,\"output_tokens\":2}}", used{1, 2, 0, 0, 0, 0}, true},
		"below zero and far beyond": {c, false, "{\"usage\":{\"prompt_tokens\":-5,\"completion_tokens\":9223372036854775807}}", used{0, 1 << 40, 0, 0, 0, 0}, true},
		"no JSON":                   {c, false, "<html>usage</html>", used{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, final := model.Meter(tt.d, tt.stream, []byte(tt.in))
			if got != tt.want || final != tt.final {
				t.Errorf("%v, %v; want %v, %v", got, final, tt.want, tt.final)
			}
		})
	}
}

// FuzzMeter verifies that the usage does not depend on the division of an answer into parts, and all numbers stay
// within their limits.
func FuzzMeter(f *testing.F) {
	f.Add("data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\r\n\r\n", byte(1), true, 9)
	f.Add("data: {\"message\":{\"usage\":{\"input_tokens\":1}}}\n\n", byte(0), true, 3)
	f.Add("[{\"usageMetadata\":{\"promptTokenCount\":5}}]", byte(3), false, 1)
	all := []model.Dialect{a, c, r, g}
	f.Fuzz(func(t *testing.T, answer string, which byte, stream bool, at int) {
		d := all[int(which)%len(all)]
		whole, final := model.Meter(d, stream, []byte(answer))
		if at = min(max(at, 0), len(answer)); at >= 0 {
			parts, again := model.Meter(d, stream, []byte(answer[:at]), []byte(answer[at:]))
			if parts != whole || again != final {
				t.Fatalf("%v, %v in parts; %v, %v", parts, again, whole, final)
			}
		}
		for _, n := range whole {
			if n < 0 || n > 4<<40 {
				t.Fatal(whole)
			}
		}
	})
}

func TestPrices(t *testing.T) {
	t.Parallel()
	p := model.DefaultPrices()
	for _, tt := range []struct {
		provider, model string
		tokens          [5]int64
		want            float64
	}{
		{"anthropic", "claude-sonnet-4-5-20250929", [5]int64{1_000, 100, 0, 0, 0}, .003 + .0015},
		{"anthropic", "claude-sonnet-4-5", [5]int64{10_000, 0, 5_000, 1_000, 2_000}, (2_000*3 + 5_000*.3 + 1_000*3.75 + 2_000*6) / 1e6},
		{"anthropic", "claude-sonnet-4-5", [5]int64{300_000, 1_000, 0, 0, 0}, (300_000*6 + 1_000*22.5) / 1e6},
		{"anthropic", "claude-opus-4-20250514", [5]int64{0, 1_000, 0, 0, 0}, .075},
		{"anthropic", "claude-opus-4-6", [5]int64{0, 1_000, 0, 0, 0}, .025},
		{"anthropic", "claude-opus-4-0", [5]int64{0, 1_000, 0, 0, 0}, .075},
		{"anthropic", "claude-opus-4-1-20250805", [5]int64{0, 1_000, 0, 0, 0}, .075},
		{"anthropic", "claude-opus-4-5-20251101", [5]int64{0, 1_000, 0, 0, 0}, .025},
		{"anthropic", "claude-sonnet-4-20250514", [5]int64{300_000, 0, 0, 0, 0}, 1.8},
		{"openai", "gpt-5", [5]int64{1_000, 0, 1_000, 0, 0}, .000125},
		{"openai", "gpt-5-2025-08-07", [5]int64{0, 1_000, 0, 0, 0}, .01},
		{"openai", "gpt-5-mini-2025-08-07", [5]int64{0, 1_000, 0, 0, 0}, .002},
		{"googleai", "gemini-2.5-flash", [5]int64{0, 1_000, 0, 0, 0}, .0025},
	} {
		n := tt.tokens
		got, ok := p.Cost(tt.provider, tt.model, n[0], n[1], n[2], n[3], n[4])
		if !ok || math.Abs(got-tt.want) > 1e-12 {
			t.Errorf("%s/%s %v: %v, %v; want %v", tt.provider, tt.model, n, got, ok, tt.want)
		}
	}
	for _, name := range []string{"gpt-5-unheard-of", "gpt-5-2025", "gpt-6-2025-08-07"} {
		if _, ok := p.Cost("openai", name, 1, 1, 0, 0, 0); ok {
			t.Errorf("%s, which has no price, has one", name)
		}
	}
	all, err := model.ParsePrices("f.yaml", []byte("as_of: 2026-10-01\nusd_per_million_tokens: {anthropic: {claude-opus-*: {input: 1, output: 2}, claude-opus-4-6: {input: 3, output: 4}}}"))
	must(t, err)
	for name, want := range map[string]float64{"claude-opus-4-1": 2, "claude-opus-4-20250514": 2, "claude-opus-4-6": 4, "claude-haiku-4-5": 5} {
		if got, ok := p.With(all).Cost("anthropic", name, 0, 1_000_000, 0, 0, 0); !ok || got != want {
			t.Errorf("%s with custom prices: %v, want %v", name, got, want)
		}
	}
	own, err := model.ParsePrices("f.yaml", []byte("usd_per_million_tokens: {house: {'*': {input: 1, output: 2}}, openai: {gpt-5: {input: 0, output: 0}}}"))
	must(t, err)
	p = p.With(own)
	if got, _ := p.Cost("house", "any", 1_000_000, 1_000_000, 1_000_000, 0, 0); got != 3 {
		// Cache tokens without a price cost as much as input.
		t.Errorf("a custom price: %v", got)
	}
	if got, ok := p.Cost("openai", "gpt-5", 1, 1, 0, 0, 0); got != 0 || !ok {
		t.Errorf("a custom price that replaces a price: %v, %v", got, ok)
	}
	if _, ok := p.Cost("openai", "gpt-5-mini", 1, 1, 0, 0, 0); !ok {
		t.Error("the others of a provider are gone")
	}
	const both = " requires prices of input and output, not below 0"
	for file, want := range map[string]string{
		"usd_per_million_tokens: {a: {b: {inputs: 1}, c: {output: x}}}":                           "1:34: unknown key \"inputs\" in usd_per_million_tokens.a.b; did you mean \"input\"?\nf.yaml:1:58: usd_per_million_tokens.a.c.output must be a number, not text",
		"usd_per_million_tokens: {a: {b: {input: 1}, c: {output: 1}}}":                            "1:30: b" + both + "\nf.yaml:1:45: c" + both,
		"usd_per_million_tokens: {a: {b: {input: 1, output: 2, long_from: 9, long: {input: 2}}}}": "1:30: b" + both,
		"usd_per_million_tokens: {a: {b: {input: .nan}, c: {input: -1}}}":                         "1:30: b" + both + "\nf.yaml:1:48: c" + both,
		"prices: {}":       "1:1: unknown key \"prices\" in the file; available: as_of, usd_per_million_tokens",
		"as_of: yesterday": "1:8: as_of is not a date; write a date such as 2026-09-30",
		"":                 "1: the file is empty; prices are below usd_per_million_tokens",
	} {
		if _, err := model.ParsePrices("f.yaml", []byte(file)); err == nil || err.Error() != "f.yaml:"+want {
			t.Errorf("%q: %v, want %s", file, err, want)
		}
	}
}
