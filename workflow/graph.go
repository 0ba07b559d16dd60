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
		switch b := s.body.(type) {
		case *switchBody:
			for _, t := range b.targets() {
				f.normal[i] = append(f.normal[i], nodes(t)...)
			}
		case *endBody, *failBody:
			f.normal[i] = []int{len(seq.steps)}
		default:
			f.normal[i] = []int{i + 1}
			if s.next.kind == targetStep {
				f.normal[i] = slices.Clone(nodes(s.next))
			}
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
	reachable := reach(f.all, seq.start)
	for i, s := range seq.steps {
		if at, ok := seq.index[s.id]; !reachable[i] && ok && at == i { // else its id is what is wrong
			l.fail(s.node, "lead to it with next, or remove it", "step %s can never be reached", s.id)
		}
	}
	ends := reach(reverse(f.normal), len(seq.steps))
	seen := make([]bool, len(seq.steps))
	for i := range seq.steps {
		if !reachable[i] || ends[i] {
			continue
		}
		if loop := loopFrom(f.normal, i, seen); loop != nil {
			l.fail(seq.steps[loop[0]].node, "lead out of it with a switch, or with an if on one of its steps", "the loop %s never ends", seq.names(loop))
		}
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

// reach marks what can be reached from a node.
func reach(edges [][]int, from int) []bool {
	seen := make([]bool, len(edges))
	seen[from] = true
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		for _, to := range edges[queue[0]] {
			if !seen[to] {
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

// loopFrom returns the loop that a node leads into when the first way is taken everywhere; nil when it leads to one that
// was seen before, or nowhere.
func loopFrom(edges [][]int, at int, seen []bool) []int {
	var way []int
	for !seen[at] {
		seen[at] = true
		way = append(way, at)
		if len(edges[at]) == 0 {
			return nil
		}
		at = edges[at][0]
	}
	if i := slices.Index(way, at); i >= 0 {
		return way[i:]
	}
	return nil
}
