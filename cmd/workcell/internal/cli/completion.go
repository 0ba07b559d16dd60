package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/session/record"
)

// maxCompletions is how many runs a shell is offered, the latest.
const maxCompletions = 50

// completeWords lets shells complete what the commands below cmd take: sandboxes and runs by the state file alone,
// since an engine may take its time, files by their extension, and the values of flags.
func (a *Command) completeWords(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if c, ok := f.Value.(interface{ Words() []string }); ok {
			a.completeFlag(cmd, f.Name, c.Words())
		}
	})
	if cmd.Flags().Lookup("backend") != nil {
		a.completeFlag(cmd, "backend", app.BackendNames(a.Options.Env))
	}
	switch {
	case cmd.Name() == "cp":
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 1 || strings.ContainsAny(typed, ":./") { // a path, here or there
				return nil, cobra.ShellCompDirectiveDefault
			}
			var names []cobra.Completion
			for _, name := range a.sandboxNames(cmd.Context()) {
				word, what, _ := strings.Cut(name, "\t")
				names = append(names, cobra.CompletionWithDesc(word+":", what))
			}
			return names, cobra.ShellCompDirectiveNoSpace
		}
	case strings.Contains(cmd.Use, "SANDBOX"):
		cmd.ValidArgsFunction = firstArgument(strings.Contains(cmd.Use, "SANDBOX…"), a.sandboxNames)
	case strings.Contains(cmd.Use, "RUN"):
		cmd.ValidArgsFunction = firstArgument(strings.Contains(cmd.Use, "RUN…"), a.runIDs)
	case strings.Contains(cmd.Use, "WORKFLOW.yaml"):
		words := []cobra.Completion{"yaml", "yml", strings.TrimPrefix(app.AgentExt, ".")}
		cmd.ValidArgsFunction = cobra.FixedCompletions(words, cobra.ShellCompDirectiveFilterFileExt)
	case strings.Contains(cmd.Use, "FILE.prompt"):
		cmd.ValidArgsFunction = cobra.FixedCompletions([]cobra.Completion{strings.TrimPrefix(app.AgentExt, ".")}, cobra.ShellCompDirectiveFilterFileExt)
	}
	for _, sub := range cmd.Commands() {
		a.completeWords(sub)
	}
}

// completeFlag lets shells complete the value of a flag. A flag that has a completion keeps it.
func (a *Command) completeFlag(cmd *cobra.Command, name string, words []string) {
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // fails where there is one
}

// firstArgument completes the first argument, or every one, from a list.
func firstArgument(every bool, list func(context.Context) []cobra.Completion) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && !every {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list(cmd.Context()), cobra.ShellCompDirectiveNoFileComp
	}
}

// stateThere returns the state; false when there is none, which completing a word does not change.
func (a *Command) stateThere() (state.Place, bool) {
	place, err := app.New(a.Options).State() // flags are parsed late here
	return place, err == nil && place.There()
}

// sandboxNames returns what the recorded sandboxes are called: the name of a named one, else the id.
func (a *Command) sandboxNames(ctx context.Context) []cobra.Completion {
	place, ok := a.stateThere()
	if !ok {
		return nil
	}
	store, err := place.OpenRecords(ctx)
	if err != nil {
		return nil
	}
	defer store.Close() // it was only read
	list, err := app.Recorded(ctx, store)
	if err != nil {
		return nil
	}
	names := make([]cobra.Completion, len(list))
	for i, s := range list {
		word, what := s.ID, s.Key.String()
		if app.IsNamed(s.Key) && s.Key.Name == record.DefaultName {
			word, what = s.Key.ID, s.ID
		}
		names[i] = cobra.CompletionWithDesc(word, what+" on "+s.Backend)
	}
	return names
}

// runIDs returns the ids of the latest runs.
func (a *Command) runIDs(ctx context.Context) []cobra.Completion {
	place, ok := a.stateThere()
	if !ok {
		return nil
	}
	j, err := place.OpenJournal(ctx)
	if err != nil {
		return nil
	}
	defer j.Close() // it was only read
	runs, err := j.Runs(ctx, maxCompletions)
	if err != nil {
		return nil
	}
	ids := make([]cobra.Completion, len(runs))
	for i, r := range runs {
		state, _ := app.RunState(ctx, j, r) // it only describes the run
		ids[i] = cobra.CompletionWithDesc(r.ID, r.Workflow+", "+state+", "+Age(time.Since(r.Started)))
	}
	return ids
}
