// Package rules holds the small languages of prompt and workflow files for several packages. The host decides with
// them; nothing here runs in a sandbox.
//
//   - Hosts: `network:`, the hosts that code in a sandbox may connect to, and the presets of package registries.
//   - Services: `services:`, the requests to HTTP services of the operator that code in a sandbox can send.
//   - Tools: `host_tools:`, the host tools that code in a sandbox may call, when, and how often.
//   - Environment: `setup:`, `pip_packages:`, and `npm_packages:`, which are installed once for all sandboxes that
//     need them.
//   - Globs: `outputs:`, the files below the work directory that a run collects.
//   - Arguments: command lines of user-defined programs. A placeholder such as {model} becomes part of one argument,
//     regardless of its value, because there is no shell.
//   - Names: reserved names of isolated sandboxes and of snapshots that a run creates. An isolated sandbox belongs to
//     one agent, step, branch, or item of a run, and is removed with it.
package rules
