package walk

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// agent describes an agent's model. It calls one tool, and answers with the result of the call.
type agent struct {
	tool   string
	args   map[string]any
	answer string // PASSED is replaced by whether the exit code was 0, and STDOUT by the output
}

// agents returns the agents by words of their instructions.
func agents() map[string]agent {
	run := func(cmd ...string) map[string]any { return map[string]any{"cmd": cmd} }
	return map[string]agent{
		"You analyze":                {"sandbox_exec", run("python3", "-m", "unittest"), `{"summary": "passed: PASSED", "findings": []}`},
		"You fix":                    {"sandbox_exec", run("sed", "-i", mend, "calculator.py"), `{"summary": "fixed", "changed_files": ["calculator.py"]}`},
		"You work at the order desk": {"sandbox_run", map[string]any{"code": "from workcell import tools\nprint('they come to', sum(tools.orders.lookup(id=str(n))['amount'] for n in range(1, 21)))"}, "STDOUT"},
		"You run tests":              {"sandbox_exec", run("python3", "-m", "unittest"), `{"all_passed": PASSED, "tests": 1, "report": ""}`},
		"Python developer": {"sandbox_exec", run("python3", "-c",
			"print('there are', sum(all(n % d for d in range(2, n)) for n in range(2, 100)))"), "STDOUT"},
		"below 10,000":    {"sandbox_run", map[string]any{"code": "print(sum(all(n % d for d in range(2, 101) if d < n) for n in range(2, 10000)))"}, "STDOUT"},
		"questions about": {"sandbox_run", map[string]any{"code": "print(6*7)"}, `{"answer": "STDOUT", "figures": []}`},
	}
}

// A sed script with fixes for both bugs of the calculator.
const mend = `s/if self.peek() in ("+", "-")/while self.peek() in ("+", "-")/
s/return value + self.expression()/value = value + self.term()/
s/^            return value - self.expression()/            else:\n                value = value - self.term()/
s|value / self.factor()|value / (self.factor() or no_divisor())|
$a def no_divisor(): raise CalculatorError("division by zero")`

// gemini is a replacement for the vendor's server. Model, plugin, and key come from the agents' files.
type gemini struct {
	t *testing.T

	mu    sync.Mutex    // guards the fields below
	held  string        // words in the instructions of the agent without answers; empty for none
	asked chan struct{} // closed when this agent sends a request
}

// hold makes an agent wait for answers. The returned channel is closed when the agent sends a request. If words is
// empty, no agent waits.
func (g *gemini) hold(words string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held, g.asked = words, make(chan struct{})
	return g.asked
}

// request contains the relevant fields of a Gemini API request.
type request struct {
	SystemInstruction struct{ Parts []part }
	Contents          []struct{ Parts []part }
}

type part struct {
	Text             string
	FunctionResponse *struct {
		Response struct {
			ExitCode int `json:"exit_code"`
			Stdout   string
		}
	}
}

// ServeHTTP answers a request, or waits until the client disconnects.
func (g *gemini) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req request
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || len(req.Contents) == 0 {
		g.t.Errorf("%s: %v", r.URL, err)
		return
	}
	instructions, last := slices.Concat(req.SystemInstruction.Parts, req.Contents[0].Parts)[0].Text, req.Contents[len(req.Contents)-1].Parts
	g.mu.Lock()
	held, asked := g.held, g.asked
	g.mu.Unlock()
	if held != "" && strings.Contains(instructions, held) {
		close(asked)
		<-r.Context().Done()
		return
	}
	for words, a := range agents() {
		if !strings.Contains(instructions, words) {
			continue
		}
		part := map[string]any{"functionCall": map[string]any{"name": a.tool, "args": a.args}}
		if f := last[len(last)-1].FunctionResponse; f != nil {
			values := strings.NewReplacer("PASSED", strconv.FormatBool(f.Response.ExitCode == 0), "STDOUT", strings.TrimSpace(f.Response.Stdout))
			part = map[string]any{"text": values.Replace(a.answer)}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"candidates": []any{map[string]any{ // a killed client reads nothing
			"content": map[string]any{"role": "model", "parts": []any{part}}, "finishReason": "STOP",
		}}})
		return
	}
	g.t.Errorf("no agent has the instructions: %s", instructions)
}
