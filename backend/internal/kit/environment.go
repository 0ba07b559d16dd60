package kit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// EnvironmentName returns the name of what is installed for the plan's sandbox over an image of that digest.
func (p *Plan) EnvironmentName(image string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{p.Spec.Instance, image, p.Spec.Environment, p.User.String()}, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// EnvironmentLabels returns the labels of what is installed in the sandbox with these.
func EnvironmentLabels(r *Record, sandbox map[string]string, now time.Time) map[string]string {
	return map[string]string{
		backend.LabelRole: backend.RoleEnvironment, backend.LabelInstance: sandbox[backend.LabelInstance], backend.LabelRecipe: r.Recipe,
		backend.LabelImage: r.Image, backend.LabelCreated: now.UTC().Format(time.RFC3339Nano),
	}
}

// DescribeEnvironment returns the environment of an instance that has these labels; false for anything else.
func DescribeEnvironment(name, instance string, labels map[string]string) (backend.Environment, bool) {
	e := backend.Environment{Name: name, Recipe: labels[backend.LabelRecipe], Image: labels[backend.LabelImage]}
	var err error
	e.Created, err = time.Parse(time.RFC3339Nano, labels[backend.LabelCreated])
	return e, err == nil && labels[backend.LabelRole] == backend.RoleEnvironment && labels[backend.LabelInstance] == instance
}

// NoEnvironment is the error of a sandbox whose environment is not there.
func (c *Calls) NoEnvironment(p *Plan) error {
	return fmt.Errorf("%s: no installed packages for %s: %w", c.o.Name, p.Image, backend.ErrEnvironment)
}

// ErrNotBuilding is the error of a sandbox that cannot become an environment.
var ErrNotBuilding = fmt.Errorf("the sandbox was not created to install packages: %w", backend.ErrInvalid)
