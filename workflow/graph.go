package workflow

import (
	"slices"
	"strings"
)

// flow is where the steps of a sequence can lead to. Node len(steps) is the end of the sequence. A step whose way is not
// known, because something is wrong with it, can lead anywhere.
type flow struct {
	normal [][]int // without failures
	all    [][]int // with on_error
}

func flowOf(seq *sequence) flow {
	f := flow{normal: make([][]int, len(seq.steps)+1), all: make([][]int, len(seq.steps)+1)}
	anywhere := make([]int, len(seq.steps)+1)
	for i := range anywhere {
		anywhere[i] = i
	}
	nodes := func(t target) []int {
		if i, ok := seq.index[t.id]; ok {
			return []int{i}
		}
		return anywhere
	}
	for i, s := range seq.steps {
		if !s.leads() {
			f.normal[i], f.all[i] = anywhere, anywhere
			continue
		}
		to, inOrder := s.body.targets()
		for _, t := range to {
			f.normal[i] = append(f.normal[i], nodes(t)...)
		}
		switch {
		case inOrder && s.next.kind == targetStep:
			f.normal[i] = append(f.normal[i], nodes(s.next)...)
		case inOrder, s.typ == TypeEnd, s.typ == TypeFail:
			next := i + 1
			if !inOrder {
				next = len(seq.steps)
			}
			f.normal[i] = append(f.normal[i], next)
		}
		if s.cond != nil { // a step that is skipped is as if it were not there
			f.normal[i] = append(f.normal[i], i+1)
		}
		f.all[i] = slices.Clone(f.normal[i])
		switch s.onError.kind {
		case targetStep:
			f.all[i] = append(f.all[i], nodes(s.onError)...)
		case targetContinue:
			f.all[i] = append(f.all[i], i+1)
		}
	}
	return f
}

// leads reports whether it is known where the step leads to. For a switch without cases it is not.
func (s *step) leads() bool {
	b, isSwitch := s.body.(*switchBody)
	return s.body != nil && !(isSwitch && len(b.cases) == 0)
}

// checkFlow finds steps that nothing leads to and loops that nothing leads out of.
func (l *loader) checkFlow(seq *sequence) {
	if len(seq.steps) == 0 {
		return
	}
	f := flowOf(seq)
	reachable := reach(f.all, seq.start, nil)
	for i, s := range seq.steps {
		if at, ok := seq.index[s.id]; !reachable[i] && ok && at == i { // else its id is what is wrong
			l.fail(s.node, "lead to it with next, or remove it", "step %s can never be reached", s.id)
		}
	}
	ends := reach(reverse(f.normal), len(seq.steps), nil)
	stuck := func(i int) bool { return reachable[i] && i < len(seq.steps) && !ends[i] }
	for _, loop := range cycles(f.normal, stuck) {
		l.fail(seq.steps[loop[0]].node, "lead out of it with a switch, or with an if on one of its steps", "the loop %s never ends", seq.names(loop))
	}
}

// names writes a loop as "a -> b -> a".
func (seq *sequence) names(loop []int) string {
	var ids []string
	for _, i := range append(slices.Clone(loop), loop[0]) {
		ids = append(ids, seq.steps[i].id)
	}
	return strings.Join(ids, " -> ")
}

// reach marks what can be reached from a node through nodes that are allowed.
func reach(edges [][]int, from int, allowed func(int) bool) []bool {
	seen := make([]bool, len(edges))
	seen[from] = true
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		for _, to := range edges[queue[0]] {
			if !seen[to] && (allowed == nil || allowed(to)) {
				seen[to] = true
				queue = append(queue, to)
			}
		}
	}
	return seen
}

func reverse(edges [][]int) [][]int {
	out := make([][]int, len(edges))
	for from, list := range edges {
		for _, to := range list {
			out[to] = append(out[to], from)
		}
	}
	return out
}

// cycles finds the loops among the allowed nodes: of each tangle of loops a shortest one that goes through its first
// node.
func cycles(edges [][]int, allowed func(int) bool) [][]int {
	var out [][]int
	done := make([]bool, len(edges))
	back := reverse(edges)
	for i := range edges {
		if done[i] || !allowed(i) {
			continue
		}
		loop := shortestLoop(edges, i, allowed)
		if loop == nil {
			continue
		}
		out = append(out, loop)
		ahead, behind := reach(edges, i, allowed), reach(back, i, allowed)
		for j := range done {
			done[j] = done[j] || ahead[j] && behind[j]
		}
	}
	return out
}

// shortestLoop finds a shortest way from a node back to itself.
func shortestLoop(edges [][]int, start int, allowed func(int) bool) []int {
	from := make([]int, len(edges)) // where the search came from, plus one
	for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, to := range edges[at] {
			if to == start {
				loop := []int{at}
				for at != start {
					at = from[at] - 1
					loop = append(loop, at)
				}
				slices.Reverse(loop)
				return loop
			}
			if from[to] == 0 && allowed(to) {
				from[to] = at + 1
				queue = append(queue, to)
			}
		}
	}
	return nil
}
