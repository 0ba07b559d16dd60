package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/core/logger"

	"github.com/workcell-dev/workcell/frontmatter"
)

// checked is an invisible template comment. PromptFS appends it to prompts without a sandbox.
const checked = "{{! workcell }}"

// registryProbe is an action without an effect. Its registration gives the plugin a reference to the registry.
type registryProbe struct {
	api.Action
	plugin *Plugin
}

func (a *registryProbe) Register(r api.Registry) {
	a.plugin.registry.Store(&r)
	a.plugin.toolbox().registry.Store(&r)
}

// checkLoaded panics if Genkit itself loaded a prompt with a sandbox from a directory. Genkit ignores `sandbox:`, so
// the agent would run without a sandbox. checkLoaded only logs prompts it cannot check. A panic would end programs with
// embedded prompts, even without a sandbox, but only outside of their source directory. The check runs once, right
// after Genkit loaded the prompts.
func (p *Plugin) checkLoaded() {
	r := p.registry.Load()
	if r == nil {
		return
	}
	dir, loaded := (*r).LookupValue(api.PromptDirKey).(string)
	if !loaded || !p.registry.CompareAndSwap(r, nil) {
		return
	}
	errs, unknown := unsafePrompts(*r, dir)
	if len(errs) > 0 {
		panic(fmt.Sprintf("tools: %v", errors.Join(errs...)))
	}
	if len(unknown) > 0 {
		cmp.Or(p.Logger, logger.FromContext(context.Background())).Error("Genkit ignores `sandbox:` in prompts of this file "+
			"system; wrap it, for example genkit.WithPromptFS(tools.PromptFS(fsys))", "prompts", unknown)
	}
}

// unsafePrompts returns errors for the prompts Genkit itself loaded from dir, and the names of the prompts from other
// file systems.
func unsafePrompts(r api.Registry, dir string) (errs []error, unknown []string) {
	templates := map[string]string{} // by name; only prompts without the sandbox middleware
	for _, a := range r.ListActions() {
		desc := a.Desc()
		prompt, _ := desc.Metadata["prompt"].(map[string]any)
		template, fromFile := prompt["template"].(string)
		if desc.Type != api.ActionTypeExecutablePrompt || !fromFile || strings.HasSuffix(template, checked) ||
			strings.Contains(desc.Name, "/") || usesSandbox(prompt["use"]) {
			continue
		}
		templates[desc.Name] = template
	}
	if len(templates) == 0 {
		return nil, nil
	}
	// If the directory is unreadable, Genkit read no prompts from it either.
	dir = cmp.Or(dir, "prompts")
	_ = fs.WalkDir(os.DirFS(dir), ".", func(file string, d fs.DirEntry, err error) error { // dir may be a link
		file = filepath.Join(dir, file)
		template, found := templates[promptName(file)]
		if err != nil || d.IsDir() || !found || !isPrompt(filepath.Base(file)) {
			return nil
		}
		src, err := os.ReadFile(file)
		if err != nil {
			return nil
		}
		if parsed, err := parseSource(string(src)); err != nil || parsed.Template != template {
			return nil
		}
		delete(templates, promptName(file))
		if err := asksForSandbox(file, src); err != nil {
			errs = append(errs, err)
		}
		return nil
	})
	return errs, slices.Sorted(maps.Keys(templates))
}

// usesSandbox reports whether use contains the sandbox middleware.
func usesSandbox(use any) bool {
	refs, _ := use.([]*ai.MiddlewareRef)
	return slices.ContainsFunc(refs, func(ref *ai.MiddlewareRef) bool { return ref.Name == frontmatter.Middleware })
}

// asksForSandbox returns an error if the file configures a sandbox, even if the configuration is invalid.
func asksForSandbox(file string, src []byte) error {
	doc, err := frontmatter.Parse(file, src)
	switch {
	case err != nil && strings.Contains(string(src)+err.Error(), "sandbox"):
		return err
	case err != nil || doc.Sandbox == nil:
		return nil
	}
	return doc.Problem("sandbox",
		"pass genkit.WithPromptFS(tools.PromptFS(os.DirFS(…))) to genkit.Init, or move the file and use tools.LoadAgent",
		"it requires a sandbox, which Genkit ignores in files that it loads")
}
