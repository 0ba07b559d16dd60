package model

import (
	"cmp"
	_ "embed"
	"maps"
	"regexp"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

//go:embed prices.yaml
var embedded []byte

// Price is the price of a model in USD per million tokens. If a cache price is nil, it equals the input price.
type Price struct {
	Input        float64  `yaml:"input"`
	Output       float64  `yaml:"output"`
	CacheRead    *float64 `yaml:"cache_read"`
	CacheWrite   *float64 `yaml:"cache_write"`
	CacheWrite1h *float64 `yaml:"cache_write_1h"`
	LongFrom     int64    `yaml:"long_from"` // requests with more input tokens use the prices in Long
	Long         *Price   `yaml:"long"`
}

// Prices are the prices of models, by provider and model name. Names may end in *. A model with a date, for example
// "gpt-5-2025-08-07", has the price of the name without the date.
type Prices map[string]map[string]Price

// DefaultPrices returns the prices embedded in this version. prices.yaml contains their date.
func DefaultPrices() Prices {
	p, err := ParsePrices("prices.yaml", embedded)
	if err != nil {
		panic(err)
	}
	return p
}

// ParsePrices parses a file in the format of prices.yaml. name is used only in errors. The error lists all problems.
func ParsePrices(name string, src []byte) (Prices, error) {
	var f struct {
		AsOf   *yamlnode.Node `yaml:"as_of"`
		Prices Prices         `yaml:"usd_per_million_tokens"`
	}
	const keys = "prices are below usd_per_million_tokens"
	format := yamlnode.Format{Empty: keys, MaxBytes: 1 << 20, MaxDepth: 16, MaxValues: 50_000}
	d, root := format.Read(name, src)
	if d.Zero = true; root == nil || !d.Decode(root, "the file", &f) {
		return nil, d.Err()
	}
	if n := f.AsOf; n != nil {
		if _, err := time.Parse(time.DateOnly, n.Value); err != nil {
			d.Fail(n, "write a date such as 2026-09-30", "as_of is not a date")
		}
	}
	var wrong hint.Problems
	both := func(at string) bool { return d.At[at+".input"] != nil && d.At[at+".output"] != nil }
	for provider, models := range f.Prices {
		for name, p := range models {
			at := "usd_per_million_tokens." + sanitize.Clip(provider) + "." + sanitize.Clip(name)
			if !p.valid() || !both(at) ||
				p.Long != nil && (p.LongFrom < 1 || !p.Long.valid() || !both(at+".long") || p.Long.Long != nil) {
				wrong.Add(provider+"."+name, "", "%s requires prices of input and output, not below 0", sanitize.Clip(name))
			}
		}
	}
	d.AddBelow("usd_per_million_tokens", wrong)
	return f.Prices, d.Err()
}

func (p Price) valid() bool {
	for _, v := range []*float64{&p.Input, &p.Output, p.CacheRead, p.CacheWrite, p.CacheWrite1h} {
		if v != nil && !(*v >= 0 && *v < 1e6) {
			return false
		}
	}
	return true
}

// With returns prices in which over overrides matching prices of p.
func (p Prices) With(over Prices) Prices {
	out := Prices{}
	maps.Copy(out, p)
	for provider, models := range over {
		all := map[string]Price{}
		maps.Copy(all, out[provider])
		for name := range models {
			if prefix, open := strings.CutSuffix(name, "*"); open {
				maps.DeleteFunc(all, func(known string, _ Price) bool { return strings.HasPrefix(known, prefix) })
			}
		}
		maps.Copy(all, models)
		out[provider] = all
	}
	return out
}

// dated matches the date at the end of a model's name.
var dated = regexp.MustCompile(`[-@]20\d\d-?[01]\d-?[0-3]\d$`)

// of returns the price of a model: the price of the name with or without the date, or else the price of the longest
// matching pattern.
func (p Prices) of(provider, model string) (best Price, ok bool) {
	if best, ok = p[provider][model]; ok {
		return best, true
	}
	if best, ok = p[provider][dated.ReplaceAllString(model, "")]; ok {
		return best, true
	}
	longest := -1
	for name, price := range p[provider] {
		if prefix, open := strings.CutSuffix(name, "*"); open && strings.HasPrefix(model, prefix) && len(prefix) > longest {
			best, ok, longest = price, true, len(prefix)
		}
	}
	return best, ok
}

// cost returns the cost of one request in USD.
func (p Price) cost(t tokens) float64 {
	if p.Long != nil && t.input > p.LongFrom {
		p = *p.Long
	}
	or := func(price *float64) float64 { return *cmp.Or(price, &p.Input) }
	plain := max(t.input-t.cacheRead-t.cacheWrite-t.cacheWriteLong, 0)
	return (float64(plain)*p.Input + float64(t.output)*p.Output + float64(t.cacheRead)*or(p.CacheRead) +
		float64(t.cacheWrite)*or(p.CacheWrite) + float64(t.cacheWriteLong)*or(p.CacheWrite1h)) / 1e6
}
