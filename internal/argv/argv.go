// Package argv fills in the command lines of programs that the user names: placeholders such as {model} in their arguments. A value
// becomes part of one argument, whatever is in it: there is no shell.
package argv

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/suggest"
)

// The placeholders.
const (
	Prompt   = "prompt"
	System   = "system"
	Model    = "model"
	Schema   = "schema"
	MaxTurns = "max_turns"
	Resume   = "resume"
	Workdir  = "workdir"
	Home     = "home"
)

// Bounds of a command line.
const (
	MaxArgs = 100
	// maxArg is the longest argument, below what Linux takes, 128 KiB.
	maxArg = 120 << 10
)

// ErrInvalid is returned for a command line that cannot be run.
var ErrInvalid = errors.New("invalid command line")

// Placeholders lists them.
func Placeholders() []string {
	return []string{Home, MaxTurns, Model, Prompt, Resume, Schema, System, Workdir}
}

// placeholder matches {name}, and {{name}}, which stands for {name} itself.
var placeholder = regexp.MustCompile(`\{\{[a-z_]+\}\}|\{[a-z_]+\}`)

// Check returns what is wrong with a command line before it is filled in.
func Check(args []string) error {
	switch {
	case len(args) == 0 || args[0] == "":
		return fmt.Errorf("no program specified: %w", ErrInvalid)
	case len(args) > MaxArgs:
		return fmt.Errorf("it has %d arguments, the limit is %d: %w", len(args), MaxArgs, ErrInvalid)
	case placeholder.MatchString(args[0]):
		return fmt.Errorf("the program %q contains a placeholder: %w", args[0], ErrInvalid)
	}
	for _, arg := range args {
		for _, found := range placeholder.FindAllString(arg, -1) {
			name := strings.Trim(found, "{}")
			if strings.HasPrefix(found, "{{") || slices.Contains(Placeholders(), name) {
				continue
			}
			return fmt.Errorf("unknown placeholder {%s}, %s write {{%s}} for literal text: %w", name, suggest.Hint(name, Placeholders()), name, ErrInvalid)
		}
		if strings.ContainsRune(arg, 0) {
			return fmt.Errorf("an argument contains NUL: %w", ErrInvalid)
		}
	}
	return nil
}

// Has reports whether a command line has a placeholder.
func Has(args []string, name string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		return slices.Contains(placeholder.FindAllString(arg, -1), "{"+name+"}")
	})
}

// Fill returns a command line with its placeholders replaced. An argument that is nothing but a placeholder without a value stays, as
// an empty one.
func Fill(args []string, values map[string]string) ([]string, error) {
	if err := Check(args); err != nil {
		return nil, err
	}
	filled := make([]string, len(args))
	for i, arg := range args {
		filled[i] = placeholder.ReplaceAllStringFunc(arg, func(found string) string {
			if strings.HasPrefix(found, "{{") {
				return found[1 : len(found)-1]
			}
			return values[strings.Trim(found, "{}")]
		})
		switch {
		case len(filled[i]) > maxArg:
			return nil, fmt.Errorf("argument %d has %d bytes, the limit is %d; remove {prompt} for a program that reads it from standard input: %w", i, len(filled[i]), maxArg, ErrInvalid)
		case strings.ContainsRune(filled[i], 0):
			return nil, fmt.Errorf("argument %d contains NUL: %w", i, ErrInvalid)
		}
	}
	return filled, nil
}
