package images

import (
	"context"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/executor/drivers"
)

// geminiSettings override the settings of a repository, to prevent the start of the repository's programs.
const geminiSettings = `{
  "mcpServers": {"workcell": {"command": "/.workcell/workcell-guest", "args": ["mcp"], "trust": true, "timeout": 1200000}},
  "mcp": {"allowed": ["workcell"]},
  "hooksConfig": {"enabled": false},
  "tools": {"discoveryCommand": "", "callCommand": "", "sandbox": false},
  "telemetry": {"enabled": false}
}
`

// Agents returns the images of CLI coding agents, in the versions for which their drivers were written, for an
// architecture in Go's naming. It omits agents without a package for the architecture. Install scripts do not run,
// because the programs are in the platforms' packages.
func Agents(arch string) ([]Image, error) {
	node, err := nodeLayer(arch, "22")
	if err != nil {
		return nil, err
	}
	var list []Image
	add := func(name, version string, p NPMPackage, below ...Layer) *Image {
		layers := append(below, Layer{Name: "work", Packages: []string{"git", "ripgrep"}}, Layer{Name: name, NPM: []NPMPackage{p}})
		im := recipe("workcell/"+name+":"+version, "", name, layers...)
		list = append(list, im)
		return &list[len(list)-1]
	}
	if p, ok := platformPackage("claude", arch); ok {
		p.Files = map[string]string{"claude": "usr/local/bin/claude", "LICENSE.md": "usr/local/share/doc/claude/LICENSE.md"}
		add("claude", drivers.Named("claude").Version, p).Private = true // its license permits use but not redistribution
	}
	if p, ok := platformPackage("codex", arch); ok {
		triple := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch] + "-unknown-linux-musl"
		p.Files = map[string]string{
			"vendor/" + triple + "/bin/codex":                "usr/local/lib/codex/bin/codex",
			"vendor/" + triple + "/bin/codex-code-mode-host": "usr/local/lib/codex/bin/codex-code-mode-host",
			"vendor/" + triple + "/codex-path/rg":            "usr/local/lib/codex/codex-path/rg",
			"vendor/" + triple + "/codex-package.json":       "usr/local/lib/codex/codex-package.json",
		}
		im := add("codex", drivers.Named("codex").Version, p)
		im.Layers[len(im.Layers)-1].Links = map[string]string{"usr/local/bin/codex": "../lib/codex/bin/codex"}
	}
	if p, ok := platformPackage("opencode", arch); ok {
		p.Files = map[string]string{"bin/opencode": "usr/local/bin/opencode"}
		add("opencode", drivers.Named("opencode").Version, p)
	}
	cli := NPMPackage{
		Name: "@google/gemini-cli", Version: drivers.Named("gemini").Version,
		Integrity: "sha512-dbQ9A0qBtFJNi6XBkHvfZ6Azpn6PNgH/P8h2MZ67RLlX8hSAVjup39CRWqdRxZv7YXIuhrFaytr8y0jKnkoxnQ==",
		Files:     map[string]string{"./": "usr/local/lib/node_modules/@google/gemini-cli/"},
	}
	im := add("gemini", drivers.Named("gemini").Version, cli, node)
	im.Env = append(defaultEnv(), "NODE_VERSION="+node.NPM[0].Version)
	top := &im.Layers[len(im.Layers)-1]
	top.Links = map[string]string{"usr/local/bin/gemini": "../lib/node_modules/@google/gemini-cli/bundle/gemini.js"}
	top.Texts = map[string]string{"etc/gemini-cli/settings.json": geminiSettings}
	return list, nil
}

// Newest returns the image of a coding agent in the newest version on npm, pinned by the current data of the registry.
// It is for trying a driver and must not be published.
func Newest(ctx context.Context, im Image) (Image, error) {
	name, tried, _ := strings.Cut(im.Ref, ":")
	layers := slices.Clone(im.Layers)
	top := &layers[len(layers)-1]
	top.NPM = slices.Clone(top.NPM)
	for i, p := range top.NPM {
		version, err := npmView(ctx, p.Name, "latest", "version")
		if err != nil {
			return Image{}, err
		}
		im.Ref = name + ":" + version
		p.Version = version + strings.TrimPrefix(p.Version, tried) // platform version
		if p.Integrity, err = npmView(ctx, p.Name, p.Version, "dist.integrity"); err != nil {
			return Image{}, err
		}
		top.NPM[i] = p
	}
	im.Layers = layers
	return im, nil
}

// platformPackage returns the npm package with an agent's program for an architecture.
func platformPackage(agent, arch string) (NPMPackage, bool) {
	p, ok := map[string]NPMPackage{
		"claude/amd64": {
			Name: "@anthropic-ai/claude-code-linux-x64", Version: drivers.Named("claude").Version,
			Integrity: "sha512-f4JWhzwYutJIHScC7/dYOPX6s28tt7ZADhsOi8zwOHq5fFPEuUeChh2NMfinSg0GrUckYxaeebC4h0DqiKzLcw==",
		},
		"claude/arm64": {
			Name: "@anthropic-ai/claude-code-linux-arm64", Version: drivers.Named("claude").Version,
			Integrity: "sha512-BlHNEtK38KBPWU31F4lUSS9sHclCyfWbThT1CErvxxH8+XcljYLZlQwdyXBkTD62rw1TgfE1u1a+quMWS0NSJg==",
		},
		"codex/amd64": {
			Name: "@openai/codex", Version: drivers.Named("codex").Version + "-linux-x64",
			Integrity: "sha512-l66NZkQgdk2C3pbcfULDz42yEUB581MVA6I+Y43Wp4OIqEy73HCdmZ0GTjeAHY2ycuH4N00d9VsLrwT1jxshTw==",
		},
		"codex/arm64": {
			Name: "@openai/codex", Version: drivers.Named("codex").Version + "-linux-arm64",
			Integrity: "sha512-9z17t4bbUJ9UCIb49O4PoA+ki+45q3rd8nZ8PeH6sYnlKkBld/Xpo/OS3h3Ti954+foshX4o7k5TCU8N7zzqQA==",
		},
		// The baseline build runs on processors without AVX2 too.
		"opencode/amd64": {
			Name: "opencode-linux-x64-baseline", Version: drivers.Named("opencode").Version,
			Integrity: "sha512-1KQGBiiDDeL/VHHbHkOvvFo8Jr97WT5+C1tear+p7IcDTnXgVHXqIjU4O4jM4mHQzykTP2i884FCnW5LDa+zCA==",
		},
	}[agent+"/"+arch]
	return p, ok
}
