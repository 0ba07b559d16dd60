package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/engines"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// maxCompletions is the maximum number of completed runs, latest first.
const maxCompletions = 50

// completeWords adds shell completion to the commands below cmd. It completes sandboxes and runs from the state file
// only, because an engine may be slow. It also completes files by their extension, and flag values.
func (a *Command) completeWords(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if c, ok := f.Value.(interface{ Words() []string }); ok {
			a.completeFlag(cmd, f.Name, c.Words())
		}
	})
	if cmd.Flags().Lookup("backend") != nil {
		a.completeFlag(cmd, "backend", engines.Names)
	}
	switch {
	case cmd.Name() == "cp":
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion,
			cobra.ShellCompDirective) {
			if len(args) > 1 || strings.ContainsAny(typed, ":./") { // a local path or a path in a sandbox
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
	case strings.Contains(cmd.Use, "APPROVAL"):
		cmd.ValidArgsFunction = firstArgument(false, a.inJournal(a.approvalIDs))
	case strings.Contains(cmd.Use, "RUN"):
		cmd.ValidArgsFunction = firstArgument(strings.Contains(cmd.Use, "RUN…"), a.inJournal(runIDs))
	case strings.Contains(cmd.Use, "WORKFLOW.yaml"):
		words := []cobra.Completion{"yaml", "yml", strings.TrimPrefix(app.AgentExt, ".")}
		cmd.ValidArgsFunction = cobra.FixedCompletions(words, cobra.ShellCompDirectiveFilterFileExt)
	case strings.Contains(cmd.Use, "FILE.prompt"):
		cmd.ValidArgsFunction = cobra.FixedCompletions([]cobra.Completion{strings.TrimPrefix(app.AgentExt, ".")},
			cobra.ShellCompDirectiveFilterFileExt)
	}
	for _, sub := range cmd.Commands() {
		a.completeWords(sub)
	}
}

// completeFlag adds shell completion of a flag's value, unless the flag already has a completion.
func (a *Command) completeFlag(cmd *cobra.Command, name string, words []string) {
	// Fails if the flag has a completion.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// firstArgument returns a completion of the first argument, or of every argument, from a list.
func firstArgument(every bool, list func(context.Context) []cobra.Completion) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && !every {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return list(cmd.Context()), cobra.ShellCompDirectiveNoFileComp
	}
}

// stateThere returns the location of the state. It returns false if no state exists, because completion must not create
// it.
func (a *Command) stateThere() (state.Place, bool) {
	place, err := app.New(a.Options).State() // completion parses flags late
	return place, err == nil && place.There()
}

// sandboxNames returns the names of the recorded sandboxes. It returns the id of a sandbox without a name.
func (a *Command) sandboxNames(ctx context.Context) []cobra.Completion {
	place, ok := a.stateThere()
	if !ok {
		return nil
	}
	store, err := place.OpenRecords(ctx)
	if err != nil {
		return nil
	}
	defer store.Close() // opened for reading only
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

// inJournal returns completions from the journals of runs.
func (a *Command) inJournal(
	list func(context.Context, runstore.Store) []cobra.Completion,
) func(context.Context) []cobra.Completion {
	return func(ctx context.Context) []cobra.Completion {
		place, ok := a.stateThere()
		if !ok {
			return nil
		}
		j, err := place.OpenJournal(ctx, false)
		if err != nil {
			return nil
		}
		defer j.Close() // opened for reading only
		return list(ctx, j)
	}
}

// approvalIDs returns the ids of the calls waiting for approval.
func (a *Command) approvalIDs(ctx context.Context, j runstore.Store) (ids []cobra.Completion) {
	list, _ := app.New(a.Options).Approvals(ctx, j) // on error, some calls are missing
	for _, q := range list {
		ids = append(ids, cobra.CompletionWithDesc(q.ID, q.Server+"."+q.Tool+", "+q.Run))
	}
	return ids
}

// runIDs returns the ids of the latest runs.
func runIDs(ctx context.Context, j runstore.Store) []cobra.Completion {
	page, err := j.Runs(ctx, runstore.Query{Limit: maxCompletions})
	if err != nil {
		return nil
	}
	ids := make([]cobra.Completion, len(page.Runs))
	for i, r := range page.Runs {
		state, _ := app.RunState(ctx, j, r) // on error, the description lacks the state
		ids[i] = cobra.CompletionWithDesc(r.ID, r.Workflow+", "+state+", "+app.Age(time.Since(r.Started)))
	}
	return ids
}
