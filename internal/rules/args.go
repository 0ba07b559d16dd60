package rules

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/suggest"
)

// Placeholders of arguments.
const (
	ArgPrompt   = "prompt"
	ArgSystem   = "system"
	ArgModel    = "model"
	ArgSchema   = "schema"
	ArgMaxTurns = "max_turns"
	ArgResume   = "resume"
	ArgWorkdir  = "workdir"
	ArgHome     = "home"
)

// Limits for a command line.
const (
	maxArgs = 100
	// maxArg is the maximum length of an argument. Linux accepts at most 128 KiB.
	maxArg = 120 << 10
)

// errInvalidArgs is returned for unusable command lines.
var errInvalidArgs = errors.New("invalid command line")

// placeholders are all placeholders.
var placeholders = []string{ArgHome, ArgMaxTurns, ArgModel, ArgPrompt, ArgResume, ArgSchema, ArgSystem, ArgWorkdir}

// placeholder matches {name}, and the escaped form {{name}}, which stands for the text {name}.
var placeholder = regexp.MustCompile(`\{\{[a-z_]+\}\}|\{[a-z_]+\}`)

// CheckArgs returns the first problem in a command line with placeholders.
func CheckArgs(args []string) error {
	switch {
	case len(args) == 0 || args[0] == "":
		return fmt.Errorf("no program specified: %w", errInvalidArgs)
	case len(args) > maxArgs:
		return fmt.Errorf("it has %d arguments, the limit is %d: %w", len(args), maxArgs, errInvalidArgs)
	case placeholder.MatchString(args[0]):
		return fmt.Errorf("the program %q contains a placeholder: %w", args[0], errInvalidArgs)
	}
	for _, arg := range args {
		for _, found := range placeholder.FindAllString(arg, -1) {
			name := strings.Trim(found, "{}")
			if strings.HasPrefix(found, "{{") || slices.Contains(placeholders, name) {
				continue
			}
			return fmt.Errorf("unknown placeholder {%s}, %s write {{%s}} for literal text: %w", name,
				suggest.Hint(name, placeholders), name, errInvalidArgs)
		}
		if strings.ContainsRune(arg, 0) {
			return fmt.Errorf("an argument contains NUL: %w", errInvalidArgs)
		}
	}
	return nil
}

// HasArg reports whether a command line contains a placeholder.
func HasArg(args []string, name string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		return slices.Contains(placeholder.FindAllString(arg, -1), "{"+name+"}")
	})
}

// FillArgs replaces the placeholders in a command line, such as {prompt}. A placeholder without a value becomes an
// empty string, and the argument remains.
func FillArgs(args []string, values map[string]string) ([]string, error) {
	if err := CheckArgs(args); err != nil {
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
			return nil, fmt.Errorf("argument %d, %s, has %d bytes, the limit is %d; "+
				"without {prompt} and {system}, a program reads them from standard input: %w", i, arg, len(filled[i]), maxArg,
				errInvalidArgs)
		case strings.ContainsRune(filled[i], 0):
			return nil, fmt.Errorf("argument %d contains NUL: %w", i, errInvalidArgs)
		}
	}
	return filled, nil
}
