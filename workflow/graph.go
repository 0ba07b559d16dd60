package workflow

// edgesOf returns the possible successors of each step of a sequence. Node len(steps) is the end of the sequence. If an
// error in a step hides the successors, every node is a possible successor.
func edgesOf(seq *sequence) [][]int {
	edges := make([][]int, len(seq.steps)+1)
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
			edges[i] = anywhere
			continue
		}
		for _, t := range s.targets() {
			edges[i] = append(edges[i], nodes(t)...)
		}
		follows := s.next.id == ""
		switch s.body.(type) {
		case *switchBody:
			follows = false
		case *endBody, *failBody:
			edges[i], follows = append(edges[i], len(seq.steps)), false
		}
		if follows || s.cond != nil || s.onError.id == onErrorContinue { // the step may be skipped
			edges[i] = append(edges[i], i+1)
		}
	}
	return edges
}

// leads reports whether the step's successors are known. They are unknown for a switch without cases.
func (s *step) leads() bool {
	b, isSwitch := s.body.(*switchBody)
	return s.body != nil && !(isSwitch && len(b.cases) == 0)
}

// checkFlow reports unreachable steps.
func (l *loader) checkFlow(seq *sequence) {
	if len(seq.steps) == 0 {
		return
	}
	reachable := reach(edgesOf(seq), seq.start)
	for i, s := range seq.steps {
		if at, ok := seq.index[s.id]; !reachable[i] && ok && at == i { // otherwise the id is the problem
			l.Fail(s.node, "add a next that leads to it, or remove it", "step %s can never be reached", s.id)
		}
	}
}

// reach returns the nodes reachable from a node.
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
