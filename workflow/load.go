package workflow

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// maxFileBytes is the maximum size of a workflow file.
const maxFileBytes = 1 << 20

// LoadOptions configure Load.
type LoadOptions struct {
	// Agents returns the file of an agent. If the agent does not exist, Agents returns an error whose text becomes part of
	// the message. A nil document means the agent's file is unknown or unreadable. If Agents is nil, every name is
	// accepted. If a step of type exec runs before any agent, it creates the shared sandbox that the first agent with a
	// known file requests.
	Agents func(name string) (*frontmatter.Document, error)
}

// Load reads and checks a workflow file. Problems in the file are returned as [frontmatter.Errors], which contains all
// problems with line and column. Other errors come from package os.
func Load(path string, opts *LoadOptions) (*Workflow, error) { return whole(Check(path, opts)) }

// Parse is like Load for a file that has already been read. name is the file's name in messages.
func Parse(name string, src []byte, opts *LoadOptions) (*Workflow, error) {
	return whole(parse(name, src, opts))
}

func whole(wf *Workflow, err error) (*Workflow, error) {
	if err != nil {
		return nil, err
	}
	return wf, nil
}

// Check is like Load, but also returns a workflow with problems. Callers that report all problems of a file can call
// CheckWorkspace and AsRoot of this workflow. The workflow is nil if the file could not be read or contains no mapping.
// It must not be run.
func Check(path string, opts *LoadOptions) (*Workflow, error) {
	src, err := yamlnode.ReadUntrusted(path, maxFileBytes)
	if err != nil {
		return nil, err
	}
	return parse(path, src, opts)
}

func parse(name string, src []byte, opts *LoadOptions) (*Workflow, error) {
	d, root := yamlnode.Format{
		Single: "give each workflow its own file", Empty: "a workflow requires id and steps", MaxBytes: maxFileBytes,
		MaxDepth:  64,
		MaxValues: 50_000,
	}.Read(name, src)
	d.Of, d.Zero = true, true
	l := &loader{
		Decoder: d,
		known:   func(string) (*frontmatter.Document, error) { return nil, nil },
		byID:    map[string]*step{},
		varsAt:  map[string]bool{},
		envs:    map[string]*expr.Env{},
	}
	if opts != nil && opts.Agents != nil {
		l.known = opts.Agents
	}
	var wf *Workflow
	if root != nil {
		wf = l.workflow(root)
	}
	if wf != nil {
		wf.Path, wf.Hash = name, digest(src, sha256.Size)
	}
	return wf, l.Err()
}

// digest returns the first bytes of a hash of data, in hex.
func digest(data []byte, size int) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:size])
}

func (l *loader) workflow(root *yamlnode.Node) *Workflow {
	o, ok := l.object(root, "the workflow", "id", "name", "description", "input", "vars", "max_steps", "timeout",
		"sandbox", "checkpoints", "outputs", "start", "steps")
	if !ok {
		return nil
	}
	var err error
	l.env, err = expr.New(expr.Var{Name: "input", Map: true}, expr.Var{Name: "steps", Map: true},
		expr.Var{Name: "run", Map: true}, expr.Var{Name: "vars", Map: true})
	if err != nil {
		l.Fail(root, "", "%v", err)
		return nil
	}
	o.require("id", "give it a name, for example id: review-and-fix")
	wf := &Workflow{
		src: l.Source,
		ID:  o.word("id"), Name: o.text("name"), Description: o.text("description"),
		Checkpoints: o.boolean("checkpoints"),
		MaxSteps:    o.integer("max_steps", 1, maxMaxSteps), Timeout: o.duration("timeout", time.Second, maxTimeout),
	}
	wf.MaxSteps, wf.Timeout = cmp.Or(wf.MaxSteps, defaultMaxSteps), cmp.Or(wf.Timeout, defaultTimeout)
	if n := o.at["input"]; n != nil {
		wf.input = l.schema(n)
		l.inputOf = wf.input
	}
	if n := o.at["sandbox"]; n != nil {
		l.sandbox(n, wf)
	}
	o.outputs(wf)
	if n := o.at["vars"]; n != nil {
		wf.vars = l.assignments(n, "vars")
	}
	if o.require("steps", "a workflow is a list of steps") {
		wf.steps, _ = l.inner(o, l.env, "the workflow")
		wf.steps.start = l.start(o, wf.steps)
	}
	wf.all = l.steps
	l.check(wf)
	return wf
}

// start returns the index of the step in `start`. Without `start`, it returns the first step.
func (l *loader) start(o *object, seq *sequence) int {
	if !o.has("start") {
		return 0
	}
	id := o.word("start")
	i, ok := seq.index[id]
	if !ok && id != "" {
		l.Fail(o.at["start"], suggest.Hint(id, sortedKeys(seq.index)), "start: unknown step %q", id)
	}
	return i
}

// runSandbox is the value of `sandbox:`. Agents can override it for the run's sandboxes. It has the fields of an
// agent's sandbox, except mode, session, and the fields of compute mode.
type runSandbox struct {
	frontmatter.Sandbox
	Retention *frontmatter.Duration `yaml:"retention"`
	Workspace string                `yaml:"workspace"`
}

// sandbox reads the configuration of the run's sandboxes.
func (l *loader) sandbox(n *yamlnode.Node, wf *Workflow) {
	d := yamlnode.NewDecoder(l.File, "", 1)
	d.Without = []string{
		"mode", "session", "keep", "outputs", "ports", "snapshots", "host_tools", "executor",
		"timeout_seconds", "exec_timeout_seconds", "max_stdout_bytes", "allow_network",
	}
	s := runSandbox{Sandbox: frontmatter.Sandbox{Mode: frontmatter.ModeCode}}
	d.Decode(n, "sandbox", &s)
	d.AddBelow("sandbox", s.Problems())
	for _, p := range d.Problems {
		l.Add(p)
	}
	wf.base = wish.Request(s.Sandbox)
	switch { // without image and runtime, agents use their own images
	case s.Image != "":
		wf.base.Language = string(s.Runtime)
	case s.Runtime != "":
		wish.DefaultImage(&wf.base, s.Runtime)
	}
	if s.Retention != nil {
		wf.base.Retention = time.Duration(*s.Retention)
	}
	if kept := wf.base.Retention; kept < 0 || kept > maxTimeout {
		l.Fail(d.At["sandbox.retention"], "", "sandbox.retention must be 0s to %s, not %s", maxTimeout, kept)
	}
	wf.workspace, wf.yield = s.Workspace, time.Duration(s.YieldMS)*time.Millisecond
	wf.asRoot, wf.sandboxAt = s.AsRoot(), d.At
}
