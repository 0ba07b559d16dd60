package engines

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/internal/hint"
)

// dockerConfigDir returns the directory of config.json, which also has the registries' credentials. If no home
// directory is known, it returns an empty string.
func (s Set) dockerConfigDir() string {
	if dir := s.Env.Get("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker")
}

// dockerContext returns the context of DOCKER_CONTEXT or `docker context use`, or an empty string.
func (s Set) dockerContext() (string, error) {
	if name := s.Env.Get("DOCKER_CONTEXT"); name != "" {
		return name, nil
	}
	var config struct {
		CurrentContext string `json:"currentContext"`
	}
	dir := s.dockerConfigDir()
	err := readJSON(&config, dir, "config.json")
	if errors.Is(err, fs.ErrNotExist) || dir == "" {
		return "", nil
	}
	if err != nil {
		return "", hint.New(hint.Unavailable, fmt.Errorf("cannot read Docker's config.json: %w", err),
			"fix the file, or set DOCKER_HOST")
	}
	return config.CurrentContext, nil
}

// readJSON decodes a file of the docker command.
func readJSON(v any, path ...string) error {
	raw, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, v)
}
