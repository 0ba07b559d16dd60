package workflow

func (b *agentBody) targets() ([]target, bool)    { return nil, true }
func (b *execBody) targets() ([]target, bool)     { return nil, true }
func (b *parallelBody) targets() ([]target, bool) { return nil, true }
func (b *forEachBody) targets() ([]target, bool)  { return nil, true }
func (b *setBody) targets() ([]target, bool)      { return nil, true }
func (b *failBody) targets() ([]target, bool)     { return nil, false }
func (b *endBody) targets() ([]target, bool)      { return nil, false }

func (b *switchBody) targets() ([]target, bool) {
	var to []target
	for _, c := range b.cases {
		to = append(to, c.to)
	}
	if b.fallback.kind != targetNone {
		to = append(to, b.fallback)
	}
	return to, false
}

func (b *agentBody) expressions() []compiled { return b.input.compiled() }

func (b *execBody) expressions() []compiled {
	var out []compiled
	for _, v := range b.argv {
		out = append(out, v.compiled()...)
	}
	if b.command != nil {
		out = append(out, compiledVars(b.command.vars)...)
	}
	out = append(out, b.cwd.compiled()...)
	out = append(out, compiledVars(b.env)...)
	return append(out, b.stdin.compiled()...)
}

func (b *switchBody) expressions() []compiled {
	var out []compiled
	if b.expression != nil {
		out = append(out, b.expression.compiled)
	}
	for _, c := range b.cases {
		if c.when != nil {
			out = append(out, c.when.compiled)
		}
	}
	return out
}

// expressions of parallel and for_each leave out those that see the scope of a branch: see inner.
func (b *parallelBody) expressions() []compiled { return nil }
func (b *forEachBody) expressions() []compiled  { return b.items.compiled() }
func (b *setBody) expressions() []compiled      { return compiledVars(b.vars) }
func (b *failBody) expressions() []compiled     { return b.message.compiled() }
func (b *endBody) expressions() []compiled      { return b.output.compiled() }

// inner is a sequence inside a step, with the expression that is evaluated at its end and the sandbox it names.
type inner struct {
	steps    *sequence
	output   *value
	sandbox  string
	isolated bool
}

func (s *step) inner() []inner {
	switch b := s.body.(type) {
	case *parallelBody:
		out := make([]inner, len(b.branches))
		for i, br := range b.branches {
			out[i] = inner{br.steps, br.output, br.sandbox, br.isolated}
		}
		return out
	case *forEachBody:
		return []inner{{steps: b.steps, output: b.output}}
	}
	return nil
}

// compiled lists the expressions of a value; a nil value has none.
func (v *value) compiled() []compiled {
	if v == nil {
		return nil
	}
	return v.progs
}

func compiledVars(list []assignment) []compiled {
	var out []compiled
	for _, a := range list {
		out = append(out, a.value.compiled()...)
	}
	return out
}
