package admincmd

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
)

func newConfigCmd(a *command) *cobra.Command {
	origin := false
	cmd := a.Verb(cli.EngineFlags|cli.ImageFlags|cli.OutputFlags, &cobra.Command{
		Use:   "show",
		Short: "Show all settings",
		Long: `Show all settings and their values. With --origin, the output includes the origin of each value: a flag, an
environment variable, the configuration file, or the default. Flags override environment variables, which override the
configuration file, which overrides the default.`,
		Example: "  workcell config show --origin\n  workcell config show --config workcell.yaml -o json",
		Args:    cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			c, err := a.Config()
			if err != nil {
				return err
			}
			return a.showConfig(c.Values(), origin)
		},
	})
	cmd.Flags().BoolVar(&origin, "origin", false, "show the origin of each value")
	return cli.Subcommands(&cobra.Command{
		Use:   "config",
		Short: "Show the configuration",
		Long: `Show the configuration. With a workcell.yaml file, you can restrict which images are allowed and set the
defaults for images, limits, the backend, traces, and retention. Workcell reads the file in --config or
$WORKCELL_CONFIG. If neither is set, it reads $XDG_CONFIG_HOME/workcell/workcell.yaml.`,
	}, cmd)
}

func (a *command) showConfig(values []config.Value, origin bool) error {
	head := []string{"KEY", "VALUE"}
	if origin {
		head = append(head, "ORIGIN")
	}
	for i, v := range values {
		if d, ok := v.Value.(time.Duration); ok {
			values[i].Value = d.String()
		}
		if !origin {
			values[i].Origin = ""
		}
	}
	return cli.PrintList(a.Command, values, head, func(v config.Value) []string {
		return []string{v.Key, cmp.Or(cell(v.Value), "-"), v.Origin}[:len(head)]
	})
}

// cell returns a value for the table, or an empty string if it is not set. An empty list differs from a missing list,
// because it may forbid everything.
func cell(value any) string {
	text := fmt.Sprint(value)
	switch list := reflect.ValueOf(value); {
	case list.Kind() == reflect.Slice && (list.Len() > 0 || list.IsNil()):
		return text[1 : len(text)-1]
	case list.Kind() == reflect.Map:
		return strings.TrimSuffix(strings.TrimPrefix(text, "map["), "]")
	}
	return text
}
