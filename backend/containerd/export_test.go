//go:build linux

package containerd

import (
	"errors"
	"regexp"

	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// IsContainer reports whether id is the ID of a container.
var IsContainer = regexp.MustCompile(`^[0-9a-f]{32}\.[A-Z2-7]{26}$`).MatchString

// SessionName returns the name of a session.
func SessionName(sessionID string) string { return string(nameOf(sessionID)) }

// ContainerOf returns the ID of a sandbox's container. It returns "" if id is not the ID of a sandbox.
func ContainerOf(id string) string {
	_, container, _ := namesOf(id)
	return container
}

// MakeFiles creates the files of a sandbox's /etc in a state directory and returns their directory.
func MakeFiles(root string) (string, error) {
	r := &record{id: "x", config: config{State: root}}
	return r.state().sandbox(r.id), errors.Join(makeFiles(r), writeAccounts(r, kit.NoAccounts()))
}
