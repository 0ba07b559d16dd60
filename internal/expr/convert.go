package expr

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// budget limits the size of one result while it is built, because copying shared parts of values could make it huge.
type budget struct {
	nodes int
	bytes int
}

func newBudget() *budget { return &budget{nodes: maxNodes, bytes: MaxBytes} }

func (b *budget) take(bytes, depth int) error {
	b.nodes--
	b.bytes -= bytes
	switch {
	case depth > maxDepth:
		return fmt.Errorf("the result is nested deeper than %d: %w", maxDepth, ErrLimit)
	case b.nodes < 0:
		return fmt.Errorf("the result has more than %d values: %w", maxNodes, ErrLimit)
	case b.bytes < 0:
		return fmt.Errorf("the result has more than %d bytes: %w", MaxBytes, ErrLimit)
	}
	return nil
}

// native converts a CEL value to plain data: nil, bool, int64, float64, string, []any, or map[string]any.
func (b *budget) native(v ref.Val, depth int) (any, error) {
	switch v := v.(type) {
	case types.String:
		return string(v), b.take(len(v), depth)
	case types.Bytes:
		s := base64.StdEncoding.EncodeToString(v)
		return s, b.take(len(s), depth)
	case *types.Optional:
		if !v.HasValue() {
			return nil, b.take(0, depth)
		}
		return b.native(v.GetValue(), depth+1)
	case traits.Mapper:
		return b.nativeMap(v, depth)
	case traits.Lister:
		out, err := []any{}, b.take(0, depth)
		for it := v.Iterator(); err == nil && it.HasNext() == types.True; {
			var value any
			value, err = b.native(it.Next(), depth+1)
			out = append(out, value)
		}
		return out, err
	}
	if err := b.take(8, depth); err != nil {
		return nil, err
	}
	return scalar(v)
}

func (b *budget) nativeMap(m traits.Mapper, depth int) (any, error) {
	out, err := map[string]any{}, b.take(0, depth)
	for it := m.Iterator(); err == nil && it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, fmt.Errorf("map keys must be strings, this one is of type %s", key.Type().TypeName())
		}
		b.bytes -= len(name)
		out[string(name)], err = b.native(m.Get(key), depth+1)
	}
	return out, err
}

func scalar(v ref.Val) (any, error) {
	switch v := v.(type) {
	case types.Null:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.Int:
		return int64(v), nil
	case types.Uint:
		if uint64(v) > math.MaxInt64 {
			return nil, fmt.Errorf("the number %d is too large", uint64(v))
		}
		return int64(v), nil
	case types.Double:
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, errors.New("the result is not a finite number")
		}
		return float64(v), nil
	case types.Timestamp:
		return v.Time.UTC().Format(time.RFC3339Nano), nil
	case types.Duration:
		return v.Duration.String(), nil
	case *types.Type:
		return v.TypeName(), nil
	case *types.Err:
		return nil, v.Unwrap()
	}
	return nil, fmt.Errorf("a result of type %s cannot be used", v.Type().TypeName())
}

// Normalize copies data to the plain form expressions use: nil, bool, int64, float64, string, []any, and
// map[string]any. Numbers without a fraction become int64, even from float64, because JSON has only one number type and
// "count + 1" must work. Invalid UTF-8 is replaced. Other Go types are converted through JSON. If the data exceeds a
// limit of this package or maxBytes, the error wraps [ErrLimit].
func Normalize(v any, maxBytes int) (any, error) {
	b := &budget{nodes: maxNodes, bytes: maxBytes}
	return b.normalize(v, 0)
}

func (b *budget) normalize(v any, depth int) (any, error) {
	switch v := v.(type) {
	case string:
		return strings.ToValidUTF8(v, "\uFFFD"), b.take(len(v), depth)
	case map[string]any:
		out, err := make(map[string]any, len(v)), b.take(0, depth)
		for k, e := range v {
			if err != nil {
				return nil, err
			}
			b.bytes -= len(k)
			out[strings.ToValidUTF8(k, "\uFFFD")], err = b.normalize(e, depth+1)
		}
		return out, err
	case []any:
		out, err := make([]any, len(v)), b.take(0, depth)
		for i, e := range v {
			if err != nil {
				return nil, err
			}
			out[i], err = b.normalize(e, depth+1)
		}
		return out, err
	}
	if err := b.take(8, depth); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case nil, bool, int64:
		return v, nil
	case json.Number:
		return Number(v)
	case float64:
		return whole(v)
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("a value of type %T cannot be used: %v", v, err)
	}
	plain, err := DecodeJSON(data)
	if err != nil {
		return nil, err
	}
	return b.normalize(plain, depth)
}

// DecodeJSON decodes one JSON document to plain data. Only white space may follow it.
func DecodeJSON(data []byte) (any, error) {
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("more than one JSON value")
	}
	return Normalize(v, max(MaxBytes, len(data)))
}

// Number returns an integer of at most 64 bits, or another whole number up to maxExact, as int64. It returns all other
// numbers as float64.
func Number(n json.Number) (any, error) {
	if i, err := n.Int64(); err == nil {
		return i, nil
	}
	f, err := n.Float64()
	if err != nil {
		return nil, fmt.Errorf("the number %s is too large", n)
	}
	return whole(f)
}

// maxExact is the largest magnitude up to which float64 represents every integer exactly.
const maxExact = 1 << 53

func whole(f float64) (any, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, errors.New("numbers must be finite")
	}
	if f == math.Trunc(f) && math.Abs(f) <= maxExact {
		return int64(f), nil
	}
	return f, nil
}

// Clone returns a deep copy of plain data, for callers that may modify it.
func Clone(v any) any { return Map(v, func(leaf any) any { return leaf }) }

// Map returns a deep copy of plain data in which every value except lists and maps is replaced by f.
func Map(v any, f func(leaf any) any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = Map(e, f)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = Map(e, f)
		}
		return out
	}
	return f(v)
}

// Size estimates the size of plain data in bytes.
func Size(v any) int {
	switch v := v.(type) {
	case string:
		return len(v) + 16
	case map[string]any:
		n := 48
		for k, e := range v {
			n += len(k) + 16 + Size(e)
		}
		return n
	case []any:
		n := 24
		for _, e := range v {
			n += Size(e)
		}
		return n
	}
	return 16
}

// Text formats plain data: strings unchanged, null as "null", numbers and booleans as in CEL and JSON, lists and maps
// as JSON.
func Text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case nil:
		return "null"
	}
	data, _ := sanitize.JSON(v) // plain data can always be encoded
	return string(data)
}

// Describe returns the type of plain data for messages, for example "a string", "an int", or "null".
func Describe(v any) string {
	t, _ := types.DefaultTypeAdapter.NativeToValue(v).Type().(*types.Type) // CEL has no other implementation
	return string(kindOf(t))
}

func limitOf(err error) error {
	if errors.Is(err, ErrLimit) {
		return ErrLimit
	}
	return nil
}
