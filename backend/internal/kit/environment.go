package kit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// EnvironmentName returns the name of the environment for the plan's sandbox on the image with this digest. If a volume
// of the image hides the environment, EnvironmentName returns ErrInvalid.
func (p *Plan) EnvironmentName(image string, volumes ...string) (string, error) {
	for _, v := range volumes {
		if overlap(v, backend.EnvironmentDir) {
			return "", fmt.Errorf("%s: image %s: its volume %.100q hides installed packages: %w",
				p.driver, p.Image, v, backend.ErrInvalid)
		}
	}
	parts := []string{p.Spec.Instance, image, p.Spec.Environment, p.User.String()}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16]), nil
}

// EnvironmentLabels returns the labels of the installed environment of a sandbox with these labels.
func EnvironmentLabels(r *Record, sandbox map[string]string, now time.Time) map[string]string {
	return map[string]string{
		backend.LabelRole: backend.RoleEnvironment, backend.LabelInstance: sandbox[backend.LabelInstance],
		backend.LabelRecipe: r.Recipe, backend.LabelImage: r.Image,
		backend.LabelCreated: now.UTC().Format(time.RFC3339Nano),
	}
}

// DescribeEnvironment returns the environment with these labels. It returns false if the labels do not describe an
// environment of the instance.
func DescribeEnvironment(name, instance string, labels map[string]string) (backend.Environment, bool) {
	e := backend.Environment{Name: name, Recipe: labels[backend.LabelRecipe], Image: labels[backend.LabelImage]}
	var err error
	e.Created, err = time.Parse(time.RFC3339Nano, labels[backend.LabelCreated])
	own := labels[backend.LabelRole] == backend.RoleEnvironment && labels[backend.LabelInstance] == instance
	return e, err == nil && own
}

// NoEnvironment returns the error for a sandbox whose environment does not exist.
func (c *Calls) NoEnvironment(p *Plan) error {
	return fmt.Errorf("%s: no installed packages for %s: %w", c.o.Name, p.Image, backend.ErrEnvironment)
}

// ErrNotBuilding is returned if a sandbox created without Spec.Building is committed as an environment.
var ErrNotBuilding = fmt.Errorf("the sandbox was not created to install packages: %w", backend.ErrInvalid)
