package app

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/models"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/executor/skill"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// executorImages returns the images of coding agents in the environment.
func (a *App) executorImages() map[string]string {
	images := map[string]string{}
	for _, command := range frontmatter.ExecutorCommands() {
		if image := a.opts.Env.Get("WORKCELL_EXECUTOR_IMAGE_" + strings.ToUpper(command)); image != "" {
			images[command] = image
		}
	}
	return images
}

// modelUses returns the models of agents: the models used by Genkit, and the models used by coding agents through the
// model proxy.
func (h *host) modelUses() (genkit, coding []models.Use, err error) {
	for _, name := range slices.Sorted(maps.Keys(h.docs)) {
		doc := h.docs[name]
		use := models.Use{Model: h.opts.Model}
		if use.Model == "" {
			use = models.Use{Model: doc.Meta.Model, Agent: name}
		}
		switch {
		case use.Model == "" && NeedsNoModel(doc):
		case use.Model == "":
			return nil, nil, Fail(ExitModel, fmt.Errorf("agent %s %w", name, errNoModel),
				"add model: provider/name to "+doc.File+", or pass --model provider/name")
		case codingAgent(doc) != nil:
			coding = append(coding, use)
		default:
			genkit = append(genkit, use)
		}
	}
	if len(h.docs) == 0 && h.opts.Model != "" {
		genkit = []models.Use{{Model: h.opts.Model}}
	}
	return genkit, coding, nil
}

// codingAgent returns the settings of a coding agent, or nil for other agents.
func codingAgent(doc *frontmatter.Document) *frontmatter.Executor {
	if doc.Sandbox == nil || doc.Sandbox.Mode != frontmatter.ModeExecutor {
		return nil
	}
	return doc.Sandbox.Executor
}

// NeedsNoModel reports whether a program of the user does the agent's work. Such an agent may have no model.
func NeedsNoModel(doc *frontmatter.Document) bool {
	x := codingAgent(doc)
	return x != nil && x.Command == "custom"
}

// Skills returns the skill directories of a coding agent, relative to the directory of the agent's file. For other
// agents, it returns none.
func Skills(doc *frontmatter.Document) ([]string, error) {
	x := codingAgent(doc)
	if x == nil {
		return nil, nil
	}
	root, err := os.OpenRoot(filepath.Dir(doc.File)) // does not follow links out of the directory
	if err != nil {
		return nil, err
	}
	defer root.Close() // opened for reading only
	return skill.Find(root.FS(), x.Skills)
}

// modelProxy returns the model proxy for coding agents, or nil without coding agents.
func (h *host) modelProxy(uses []models.Use) (*model.Proxy, error) {
	if len(uses) == 0 {
		return nil, nil
	}
	byName := map[string]model.Provider{}
	for _, use := range uses {
		p, err := models.Upstream(h.opts.Env, use)
		if err != nil {
			return nil, err
		}
		byName[p.Name] = p
	}
	opts := &model.Options{Log: h.Logger()}
	if h.opts.Prices != "" {
		file, err := os.ReadFile(h.opts.Prices)
		if err != nil {
			return nil, Fail(ExitInvalid, err, "")
		}
		over, err := model.ParsePrices(h.opts.Prices, file)
		if err != nil {
			return nil, Fail(ExitInvalid, err, "")
		}
		opts.Prices = model.DefaultPrices().With(over)
	}
	return model.New(slices.Collect(maps.Values(byName)), opts)
}

// CheckModel checks the value of --model early, to avoid waiting for an engine.
func (a *App) CheckModel() error {
	if _, isScript := scriptOf(a.opts.Model); isScript || a.opts.Model == "" {
		return nil
	}
	_, err := models.Use{Model: a.opts.Model}.Provider()
	return err
}

// CheckCoding returns an error if an agent is a coding agent and cannot use a model.
func CheckCoding(doc *frontmatter.Document, model string) error {
	if x := codingAgent(doc); x != nil {
		return checkCoding(x.Command, model)
	}
	return nil
}

func checkCoding(command, name string) error {
	provider, _, _ := strings.Cut(name, "/")
	inside := executor.Inside{Models: map[model.Dialect]executor.Endpoint{}}
	for _, d := range models.Dialects(provider) {
		inside.Models[d] = executor.Endpoint{}
	}
	if d := drivers.Named(command); d != nil {
		if _, err := d.Prepare(executor.Task{Model: name}, inside); errors.Is(err, backend.ErrUnsupported) {
			return err
		}
	}
	return nil
}

// errNoModel means an agent's file has no model. The hint contains the file.
var errNoModel = errors.New("has no model")

// CodingTasks are the coding agents offered as tasks by `mcp --executors`.
type CodingTasks struct {
	Agents []string // "command", or "command=provider/model"
	Budget float64  // USD per task; zero means no limit
}

// codingModels returns the default models of coding agents.
func codingModels() map[string]string {
	return map[string]string{
		"claude": "anthropic/claude-sonnet-4-5", "codex": "openai/gpt-5-codex", "gemini": "googleai/gemini-2.5-pro",
		"opencode": "anthropic/claude-sonnet-4-5",
	}
}

// coder returns the command of an element of Agents, the model in the element, and the model to use. model is the value
// of --model.
func coder(text, model string) (command, own, used string) {
	command, own, _ = strings.Cut(text, "=")
	return command, own, cmp.Or(own, model, codingModels()[command])
}

// Check validates --executors and --budget-usd. model is the value of --model.
func (c CodingTasks) Check(model string) error {
	if !(c.Budget >= 0 && c.Budget < 1e9) { // also rejects NaN
		return InvalidFlag("budget-usd", c.Budget, "must be in USD, or 0 for no limit")
	}
	if c.Budget != 0 && len(c.Agents) == 0 {
		return UsageError(errors.New("--budget-usd requires --executors"), "for example --executors claude,codex")
	}
	for _, text := range c.Agents {
		command, _, used := coder(text, model)
		if !slices.Contains(frontmatter.ExecutorAgents(), command) {
			return UsageError(fmt.Errorf("unknown coding agent %q in --executors", command),
				"use "+strings.Join(frontmatter.ExecutorAgents(), ", "))
		}
		if _, isScript := scriptOf(used); isScript {
			continue // running the task reports the error
		}
		if err := checkCoding(command, used); err != nil {
			return UsageError(fmt.Errorf("--executors %s: %w", text, err),
				"for example --executors "+command+"="+codingModels()[command])
		}
	}
	return nil
}

// write writes one agent file per coding agent into a new directory, which the caller must remove. dir is empty if
// there are no coding agents. A task with a session resumes the session's conversation. model is the value of --model.
func (c CodingTasks) write(model string) (dir string, err error) {
	if len(c.Agents) == 0 {
		return "", nil
	}
	if dir, err = os.MkdirTemp("", "workcell-executors-"); err != nil {
		return "", err
	}
	for _, text := range c.Agents {
		command, _, used := coder(text, model)
		settings := map[string]any{"command": command, "resume": frontmatter.ResumeSession}
		if c.Budget != 0 {
			settings["budget"] = map[string]any{"usd": c.Budget}
		}
		head, err := yamlnode.Encode(map[string]any{
			"description": "coding agent; session_id continues its conversation",
			"model":       used,
			"input":       map[string]any{"schema": map[string]any{"task": "string, what to do"}},
			"sandbox":     map[string]any{"mode": frontmatter.ModeExecutor, "executor": settings},
		})
		if err == nil {
			file := filepath.Join(dir, command+AgentExt)
			err = os.WriteFile(file, []byte("---\n"+string(head)+"---\n{{task}}\n"), 0o600)
		}
		if err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
	}
	return dir, nil
}
